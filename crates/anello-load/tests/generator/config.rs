//! Validation of the configuration and values derived from it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anello_load::{Arrivals, HttpLoad, Knee, LoadConfig, Mode, Protocol, Sweep};

fn echo() -> LoadConfig {
    LoadConfig::echo(SocketAddr::from(([127, 0, 0, 1], 7000)), 128)
}

#[test]
fn configured_source_addresses_take_precedence() {
    let many = LoadConfig { connections: 10_000, ..echo() };
    assert_eq!(many.effective_source_addresses().len(), 3);
    let configured = LoadConfig { source_addresses: vec![[127, 1, 2, 3].into()], ..many };
    assert_eq!(configured.effective_source_addresses(), configured.source_addresses);
}

fn source_addresses(target: &str, connections: usize) -> Vec<IpAddr> {
    let target: SocketAddr = target.parse().unwrap();
    LoadConfig { connections, ..LoadConfig::echo(target, 1) }.effective_source_addresses()
}

#[test]
fn source_addresses_added_only_for_many_loopback_connections() {
    for (target, connections, count) in [
        ("127.0.0.1:7000", 1, 0),
        ("127.0.0.1:7000", 4000, 0),
        ("127.0.0.1:7000", 4001, 2),
        ("127.8.8.8:7000", 10_000, 3),
        // IPv6 has a single loopback address, and connections to remote servers cannot use loopback addresses.
        ("[::1]:7000", 10_000, 0),
        ("192.0.2.1:7000", 10_000, 0),
    ] {
        assert_eq!(source_addresses(target, connections).len(), count, "{connections} to {target}");
    }
}

#[test]
fn source_addresses_are_distinct_and_on_loopback() {
    let sources = source_addresses("127.0.0.1:7000", 1_000_000);
    assert_eq!((sources.len(), sources[0]), (250, IpAddr::V4(Ipv4Addr::LOCALHOST)));
    assert!(sources.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(sources.iter().all(IpAddr::is_loopback));
}

#[test]
fn sweep_rates_end_at_last_rate() {
    let sweep = |first, last, step| Sweep {
        first,
        last,
        step,
        arrivals: Arrivals::Constant,
        seed: 0,
        knee: Knee::default(),
    };
    assert_eq!(sweep(10, 30, 10).rates().collect::<Vec<_>>(), [10, 20, 30]);
    assert_eq!(sweep(10, 29, 10).rates().collect::<Vec<_>>(), [10, 20]);
    assert_eq!(sweep(10, 10, 5).rates().collect::<Vec<_>>(), [10]);
}

#[test]
fn validate_reports_each_problem() {
    let http = LoadConfig::http(SocketAddr::from(([127, 0, 0, 1], 80)), "localhost", "/");
    for valid in [echo(), http.clone()] {
        assert_eq!(valid.validate(), Ok(()));
    }
    let validation_error = |change: &dyn Fn(&mut LoadConfig)| {
        let mut load = echo();
        change(&mut load);
        load.validate().unwrap_err()
    };
    assert!(validation_error(&|load| load.connections = 0).contains("at least 1"));
    assert!(validation_error(&|load| load.threads = 51).contains("51 threads"));
    assert!(validation_error(&|load| load.cores = vec![0, 1]).contains("2 cores"));
    assert!(validation_error(&|load| load.ramp = Duration::from_secs(11)).contains("ramp"));
    assert!(validation_error(&|load| load.interval = Duration::from_millis(1)).contains("10 ms"));
    for (request_bytes, response_bytes) in [(0, 1), (1, 0), ((1 << 30) + 1, 1)] {
        let protocol = Protocol::Messages { request_bytes, response_bytes };
        assert!(validation_error(&|load| load.protocol = protocol.clone()).contains("1 to"));
    }
    let sources = vec![[127, 0, 0, 1].into(), Ipv6Addr::LOCALHOST.into()];
    assert!(validation_error(&|load| load.source_addresses.clone_from(&sources)).contains("family"));
    assert!(validation_error(&|load| load.stall_timeout = Duration::ZERO).contains("timeouts"));
    assert!(validation_error(&|load| load.stall_timeout = Duration::MAX).contains("24 hours"));
    assert!(validation_error(&|load| load.connect_timeout = Duration::MAX).contains("24 hours"));
    assert!(validation_error(&|load| load.requests = Some(0)).contains("at least 1"));
    let open = |per_second| Mode::Open { per_second, arrivals: Arrivals::Constant, seed: 0 };
    assert!(validation_error(&|load| load.mode = open(0)).contains("per second"));
    let validation_error = |change: &dyn Fn(&mut HttpLoad)| {
        let mut load = http.clone();
        if let Protocol::Http(http) = &mut load.protocol {
            change(http);
        }
        load.validate().unwrap_err()
    };
    assert!(validation_error(&|http| http.paths.clear()).contains("path"));
    assert!(validation_error(&|http| http.paths[0] = "/a b".to_owned()).contains("%XX"));
    assert!(validation_error(&|http| http.pipeline_depth = 0).contains("in flight"));
    assert!(
        validation_error(&|http| http.headers.push(("A".to_owned(), "b\r\nC: d".to_owned())))
            .contains("NAME")
    );
    assert!(
        validation_error(&|http| http.headers.push(("Content-Length".to_owned(), "3".to_owned())))
            .contains("body")
    );
    assert!(validation_error(&|http| http.host.clear()).contains("host"));
    assert!(validation_error(&|http| http.method = "GE T".to_owned()).contains("invalid method"));
    assert!(validation_error(&|http| http.method = "CONNECT".to_owned()).contains("not supported"));
    let head_with_body = |http: &mut HttpLoad| {
        (http.method, http.expected_body) = ("HEAD".to_owned(), Some("x".into()));
    };
    assert!(validation_error(&head_with_body).contains("have no body"));
}
