//! Instruction counts for contenders.

use anello_lab::{Cell, Instructions, Workload};

const FILE: &str = r#"{"kernel": "6.12.1", "cells": [
  {"server": "anello-uring", "connections": 50, "bytes": 128, "requests": 4000, "instructions_per_request": 12290.5},
  {"server": "tokio", "connections": 50, "bytes": 128, "error": "the server said: no"}
]}"#;

#[test]
fn counts_match_by_name_and_cell() {
    let counts = Instructions::from_json(FILE).unwrap();
    assert_eq!(counts.kernel, "6.12.1");
    let cell = Cell::echo(128, 50);
    assert_eq!(counts.of("anello io_uring", &cell), Some(12_290.5));
    assert_eq!(counts.of("Anello_IO-uring", &cell), Some(12_290.5));
    assert_eq!(counts.of("anello epoll", &cell), None);
    assert_eq!(counts.of("tokio", &cell), None, "the measurement failed");
    assert!(counts.know("tokio") && !counts.know("gnet"));
    let others = [
        Cell::echo(128, 1),
        Cell::echo(1024, 50),
        Cell { server_cores: 2, ..cell },
        Cell { offered_per_second: Some(1000), ..cell },
        Cell { workload: Workload::Idle, ..cell },
    ];
    for other in others {
        assert_eq!(counts.of("anello io_uring", &other), None, "{other}");
    }
    let reparsed = Instructions::from_json(&serde_json::to_string(&counts).unwrap());
    assert_eq!(reparsed, Ok(counts));
}

#[test]
fn invalid_files_are_rejected() {
    assert!(Instructions::from_json("{}").unwrap_err().to_string().contains("bench/instructions/run --json"));
    assert!(Instructions::from_json("").is_err());
    let negative = FILE.replace("12290.5", "-1");
    assert!(Instructions::from_json(&negative).unwrap_err().to_string().contains("repeat the measurement"));
}
