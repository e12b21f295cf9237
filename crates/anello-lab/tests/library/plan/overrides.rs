//! Changes to the configuration of a resolved scenario.

use std::path::{Path, PathBuf};

use anello_lab::peers::Serves;
use anello_lab::tls::Cipher;
use anello_lab::{
    Cell, ConfigError, Contender, Endpoint, Interface, LabConfig, NetworkPath, Target, Workload, echo_cells,
};

#[test]
fn overridden_cells_keep_other_values() {
    let overridden = |cells: &[Cell], connections: &[usize], message_bytes: &[usize]| {
        let mut config = LabConfig {
            cells: cells.to_vec(),
            ..LabConfig::preset("quick", PathBuf::from("anello")).unwrap()
        };
        config.override_cells(connections, message_bytes);
        config.cells
    };
    let cells = echo_cells(&[128, 1024], &[1, 50]);
    assert_eq!(overridden(&cells, &[7], &[]), echo_cells(&[128, 1024], &[7]));
    assert_eq!(overridden(&cells, &[], &[9]), echo_cells(&[9], &[1, 50]));
    assert_eq!(overridden(&cells, &[7], &[9]), echo_cells(&[9], &[7]));
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
    assert_eq!(overridden(&[idle], &[7], &[9]), [Cell { connections: 7, ..idle }]);
}

#[test]
fn passes_fit_load_time() {
    let mut config = LabConfig::preset("quick", PathBuf::from("anello")).unwrap();
    let (passes, time) = (config.timing.passes, config.load_time());
    config.fit_passes(time);
    assert_eq!(config.timing.passes, passes);
    config.fit_passes(3 * time);
    assert_eq!(config.timing.passes, 3 * passes);
}

#[test]
fn contenders_adapt_to_protocol_of_cells() {
    let plain = Contender::new("a", Path::new("./a"), &["--root", "{root}"]);
    let secure = Contender::new("b", Path::new("./b"), &["--pem", "{certificate}", "{key}"]);
    let cell = Cell::http(Target::Hello, 1);
    let config = |cell| LabConfig {
        cells: vec![cell],
        contenders: Vec::new(),
        ..LabConfig::preset("quick", PathBuf::from("anello")).unwrap()
    };
    let mut both = config(cell);
    both.add_contenders(&[plain.clone(), secure.clone()]).unwrap();
    assert_eq!((both.contenders.len(), &both.contenders[0].serves[..]), (2, &[Serves::Files][..]));
    let mut secured = config(Cell { workload: cell.workload.under(Cipher::Aes128Gcm), ..cell });
    assert_eq!(secured.add_contenders(&[secure.clone(), plain]), Err(ConfigError::NoTls("a".to_owned())));
    secured.add_contenders(&[secure]).unwrap();
    assert_eq!(secured.contenders.len(), 1);
}

fn network(server: &str, load: &str) -> NetworkPath {
    let end = |address: &str| Endpoint {
        host: None,
        kernel: String::new(),
        cpu_model: String::new(),
        interface: Interface {
            address: address.parse().unwrap(),
            device: None,
            mtu_bytes: None,
            queueing: None,
            link_mbit_per_second: None,
        },
    };
    NetworkPath {
        server: end(server),
        load: end(load),
        same_machine: false,
        min_round_trip_ns: 1,
        median_round_trip_ns: 1,
    }
}

#[test]
fn servers_listen_on_address_of_their_host() {
    for (address, expected) in [("10.0.0.5", "10.0.0.5:0"), ("fd00::5", "[fd00::5]:0")] {
        let mut config = LabConfig::preset("quick", PathBuf::from("anello")).unwrap();
        config.set_network(network(address, "10.0.0.6")).unwrap();
        for contender in &config.contenders {
            assert!(contender.arguments.iter().any(|word| word == expected), "{contender:?}");
            assert!(!contender.command_line().contains("127.0.0.1"), "{contender:?}");
        }
    }
}

#[test]
fn disk_cells_cannot_be_measured_across_hosts() {
    let mut config = LabConfig::preset("disk", PathBuf::from("anello")).unwrap();
    let error = config.set_network(network("10.0.0.5", "10.0.0.6")).unwrap_err();
    assert_eq!(error, ConfigError::DiskAcrossHosts);
}
