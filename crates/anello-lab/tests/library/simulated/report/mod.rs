//! Tests for reports on simulated runs: they are complete, escape all text, and load nothing from the network.

mod against;
mod odd;
mod page;
mod plots;
mod stored;
mod tables;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anello_lab::ScenarioRecord;
use anello_lab::{
    Cell, Contender, CoreLayout, Instructions, LabConfig, LabResult, Provenance, Role, echo_cells,
};

use crate::simulated::lab::run;
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

/// Contenders: name, role, and CPU time per request in nanoseconds.
const FIELD: [(&str, Role, f64); 8] = [
    ("anello io_uring", Role::Anello, 5_500.0),
    ("anello epoll", Role::Anello, 6_100.0),
    ("bare io_uring", Role::Baseline, 4_000.0),
    ("bare epoll", Role::Baseline, 6_000.0),
    ("bare epoll again", Role::Baseline, 6_000.0),
    ("tokio", Role::Peer, 6_600.0),
    ("go <net> & \"friends\"", Role::Peer, 9_000.0),
    ("fragile", Role::Peer, 7_000.0),
];

/// Returns a run of the "frevib" preset with special cases: a peer that cannot start, a peer that is killed, and a name
/// with markup characters.
fn sample() -> LabResult {
    static SAMPLE: LazyLock<LabResult> =
        LazyLock::new(|| simulate_in(echo_cells(&[128, 512], &[1, 50, 300]), Noise::USUAL));
    SAMPLE.clone()
}

fn simulate_in(cells: Vec<Cell>, noise: Noise) -> LabResult {
    let contender = |(name, role, _): &(&str, Role, f64)| Contender {
        role: *role,
        twin_of: name.ends_with("again").then(|| "bare epoll".to_owned()),
        base: (*name == "fragile").then(|| FIELD[6].0.to_owned()),
        ..Contender::new(name, Path::new("server"), &["--name", name, "--cores", "{cores}"])
    };
    let mut contenders: Vec<Contender> = FIELD.iter().map(contender).collect();
    contenders.push(Contender::new("absent", Path::new("absent"), &[]));
    let mut config = LabConfig {
        contenders,
        scenario: ScenarioRecord {
            name: "frevib".to_owned(),
            title: "A run <of> a test".to_owned(),
            ..Default::default()
        },
        cells,
        // With checks, a contender that fails to start is not measured at all.
        check: false,
        cores: CoreLayout::new(vec![0], vec![1]),
        provenance: Provenance {
            repeat_command: "anello lab run --contender 'x=<y>'".to_owned(),
        instructions: Some(
            Instructions::from_json(
                r#"{"kernel": "6.12", "cells": [
                    {"server": "Tokio", "connections": 50, "bytes": 128, "requests": 9, "instructions_per_request": 12571.2},
                    {"server": "bare-epoll", "connections": 50, "bytes": 128, "requests": 9, "instructions_per_request": 12140}]}"#,
            )
            .unwrap(),
        ),
            ..Provenance::default()
        },
        ..LabConfig::preset("quick", PathBuf::from("server")).unwrap()
    };
    config.timing.slice = Duration::from_millis(50);
    config.timing.seed = 5;
    let mut servers: Vec<(&str, SimulatedServer)> =
        FIELD.iter().map(|(name, _, cost_ns)| (*name, SimulatedServer::costing(*cost_ns))).collect();
    servers[7].1.fault = Fault::DiesAbove(300);
    let why = "no </script><img src=x onerror=alert(1)> here".to_owned();
    servers.push(("absent", SimulatedServer::costing(1.0).with_fault(Fault::CannotStart(why))));
    let simulation = Simulation::new(5, noise, &servers);
    let stop = AtomicBool::new(false);
    run(&config, &mut simulation.load(), &mut simulation.machine(), &mut |_| {}, &stop).unwrap()
}

/// HTML elements without an end tag.
const VOID: [&str; 4] = ["meta", "input", "br", "!DOCTYPE"];

/// Checks the tags of an HTML page or SVG image and returns the number of elements. Returns an error for an element
/// that is not closed, for a mismatched end tag, and for unbalanced quotes within a tag.
fn check_markup(text: &str) -> Result<usize, String> {
    let (mut open, mut elements) = (Vec::new(), 0);
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let tail = &rest[start + 1..];
        if let Some(comment) = tail.strip_prefix("!--") {
            let end = comment.find("-->").ok_or("comment is not closed")?;
            rest = &comment[end + 3..];
            continue;
        }
        let end =
            tail.find('>').ok_or_else(|| format!("unterminated tag: {}", &tail[..tail.len().min(60)]))?;
        let tag = &tail[..end];
        rest = &tail[end + 1..];
        if tag.matches('"').count() % 2 == 1 {
            return Err(format!("unbalanced quotes in <{tag}>"));
        }
        let name =
            tag.trim_start_matches('/').split(|c: char| c.is_whitespace() || c == '/').next().unwrap_or("");
        if tag.starts_with('/') {
            let last: Option<&str> = open.pop();
            if last != Some(name) {
                return Err(format!("</{name}> closes {last:?} after {elements} elements"));
            }
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            elements += 1;
            open.push(name);
            // The content of these elements is not markup.
            if matches!(name, "script" | "style") {
                let close =
                    rest.find(&format!("</{name}>")).ok_or_else(|| format!("<{name}> is not closed"))?;
                rest = &rest[close..];
            }
        }
    }
    if open.is_empty() { Ok(elements) } else { Err(format!("not closed: {open:?}")) }
}
