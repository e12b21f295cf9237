//! Tests for the names of cells, and for the CPU share that servers can use in a cell.

use anello_lab::cell::SATURATION_CONNECTIONS_PER_CORE;
use anello_lab::tls::Cipher;
use anello_lab::{Cell, DiskOperation, Target, Workload};

#[test]
fn only_saturated_closed_loops_throttle_servers() {
    let share = |cell: Cell| cell.server_share(0.8, &[0, 2], &[1]);
    assert_eq!(share(Cell::echo(128, SATURATION_CONNECTIONS_PER_CORE)), 0.8);
    assert_eq!(share(Cell::echo(128, SATURATION_CONNECTIONS_PER_CORE - 1)), 1.0);
    assert_eq!(share(Cell { server_cores: 2, ..Cell::echo(128, 2 * SATURATION_CONNECTIONS_PER_CORE) }), 0.4);
    assert_eq!(
        share(Cell { server_cores: 2, ..Cell::echo(128, 2 * SATURATION_CONNECTIONS_PER_CORE - 1) }),
        1.0
    );
    assert_eq!(share(Cell { offered_per_second: Some(1), ..Cell::echo(128, 300) }), 1.0);
    assert_eq!(share(Cell { workload: Workload::Idle, ..Cell::echo(128, 300) }), 1.0);
    assert_eq!(Cell::echo(128, 300).server_share(0.8, &[0], &[0]), 1.0, "the load shares the core");
}

#[test]
fn small_responses_throttle_servers_and_large_ones_do_not() {
    let share = |cell: Cell| cell.server_share(0.8, &[0], &[1]);
    for target in Target::ALL {
        let expected = if target.is_large() { 1.0 } else { 0.8 };
        assert_eq!(share(Cell::http(target, SATURATION_CONNECTIONS_PER_CORE)), expected, "{target}");
        assert!(Cell::http(target, SATURATION_CONNECTIONS_PER_CORE).is_saturated());
        assert_eq!(share(Cell::http(target, SATURATION_CONNECTIONS_PER_CORE - 1)), 1.0);
        assert_eq!(share(Cell { offered_per_second: Some(1), ..Cell::http(target, 50) }), 1.0);
    }
    let deep = Workload::Http { target: Target::Hello, pipelining: 64, reconnect: false, cipher: None };
    assert_eq!(
        share(Cell { workload: deep, ..Cell::echo(1, 1) }),
        1.0,
        "pipelined requests of one connection"
    );
}

#[test]
fn cells_have_readable_names() {
    assert_eq!(Cell::echo(128, 1).to_string(), "1 connection, 128 bytes");
    let rated = Cell { offered_per_second: Some(20_000), server_cores: 2, ..Cell::echo(1024, 80) };
    assert_eq!(rated.to_string(), "80 connections, 1024 bytes, 20,000 requests/s offered, 2 cores");
    let disk = Workload::Disk { operation: DiskOperation::RandomRead, direct: true, block_bytes: 4096 };
    let deep = Cell { workload: disk, ..Cell::echo(1, 16) };
    assert_eq!(deep.to_string(), "random reads, direct, 4096 bytes, queue depth 16");
    assert_eq!(Cell::http(Target::Page, 50).to_string(), "50 connections, page.html");
    assert_eq!(Workload::http(Target::Page).to_string(), "page.html (6 KiB)");
    assert_eq!(Workload::http(Target::Huge).to_string(), "10m.bin");
    let http =
        |pipelining, reconnect| Workload::Http { target: Target::Fixed, pipelining, reconnect, cipher: None };
    assert_eq!(http(16, false).to_string(), "/fixed (13 bytes), pipelining 16");
    let each = Cell { workload: http(1, true), ..Cell::echo(1, 2) };
    assert_eq!(each.to_string(), "2 connections, /fixed, a connection per request");
    let secure = Cell { workload: each.workload.under(Cipher::Aes128Gcm), ..each };
    let expected = "2 connections, /fixed, TLS AES-128-GCM, a connection per request";
    assert_eq!(secure.to_string(), expected);
    let page = Workload::http(Target::Page).under(Cipher::Aes256Gcm);
    assert_eq!(page.to_string(), "page.html (6 KiB), TLS AES-256-GCM");
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
    assert_eq!(idle.to_string(), "1000 idle connections");
    for (rate, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
        let name = Cell { offered_per_second: Some(rate), ..Cell::echo(1, 1) }.to_string();
        assert!(name.ends_with(&format!(", {expected} requests/s offered")), "{name}");
    }
}

#[test]
fn plain_http_is_serialized_without_cipher() {
    let serialized = |workload: Workload| serde_json::to_string(&workload).unwrap();
    let plain = Workload::http(Target::Hello);
    let expected = r#"{"kind":"http","target":"hello.txt","pipelining":1,"reconnect":false}"#;
    assert_eq!(serialized(plain), expected);
    let secure = plain.under(Cipher::Aes128Gcm);
    assert_eq!(serialized(secure), expected.replace('}', r#","cipher":"aes-128-gcm"}"#));
    for workload in [plain, secure] {
        assert_eq!(serde_json::from_str::<Workload>(&serialized(workload)).unwrap(), workload);
    }
    assert_eq!(Workload::Idle.under(Cipher::Aes128Gcm), Workload::Idle);
}

#[test]
fn group_contains_cells_of_one_chart() {
    assert_eq!(Cell::echo(128, 1).group(), Cell::echo(128, 300).group());
    assert_ne!(Cell::echo(128, 1).group(), Cell::echo(1024, 1).group());
    let rated = |rate, connections| Cell { offered_per_second: Some(rate), ..Cell::echo(100, connections) };
    assert_eq!(rated(1000, 80).group(), rated(2000, 80).group());
    assert_ne!(rated(1000, 80).group(), rated(1000, 250).group());
    assert_ne!(rated(1000, 80).group(), Cell::echo(100, 80).group());
    assert_eq!(rated(1000, 80).group().to_string(), "100 bytes, 80 connections");
    assert_eq!((rated(1000, 80).position(), Cell::echo(100, 80).position()), (1000.0, 80.0));
}
