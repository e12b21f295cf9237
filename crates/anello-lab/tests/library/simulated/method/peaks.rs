//! Tests for peak rates. The cost of the simulated servers depends on the number of connections, so their peaks are
//! known.

use anello_lab::cell::SATURATION_CONNECTIONS_PER_CORE;
use anello_lab::peak::{Peak, Sweep, sweeps};
use anello_lab::result::FindingKind;
use anello_lab::{Cell, LabConfig, LabResult, Method, Workload, echo_cells, render_json};

use super::{REFERENCE, config, simulate};
use crate::simulated::simulation::{Fault, Noise, SimulatedServer};

/// Returns a configuration with this server share in saturated closed loops.
fn config_with(server_share: f64, others: &[&str], cells: Vec<Cell>) -> LabConfig {
    let mut config = config(others, cells, 1);
    config.cores.server_share = server_share;
    config
}

fn peak_of(sweep: &Sweep, contender: usize) -> Peak {
    sweep.peaks[contender].expect("it was measured")
}

#[test]
fn peak_is_highest_median_and_marks_end_of_sweep() {
    let costing = SimulatedServer::costing;
    let field = [
        // Each connection adds 0.1 µs to the cost of a request ("steep") or saves 20 ns ("rising").
        ("steep", costing(6_000.0).with_cpu_ns_per_connection(100.0)),
        ("rising", costing(6_000.0).with_cpu_ns_per_connection(-20.0)),
        ("light", costing(2_000.0)),
        ("fragile", costing(6_000.0).with_cpu_ns_per_connection(-20.0).with_fault(Fault::DiesAbove(40))),
        ("absent", costing(1.0).with_fault(Fault::CannotStart("no".to_owned()))),
    ];
    let names = field.each_ref().map(|(name, _)| *name);
    let result =
        simulate(&config_with(1.0, &names, echo_cells(&[128], &[40, 1, 20, 10])), Noise::NONE, &field);
    let all = sweeps(&result);
    let [sweep] = &all[..] else { panic!("{all:?}") };
    assert_eq!(sweep.group, Cell::echo(128, 1).group());
    assert_eq!(result.contenders[0].name, REFERENCE);
    let position = |contender: usize| {
        let peak = peak_of(sweep, contender);
        (peak.connections, peak.at_the_end, peak.load_bound)
    };
    assert_eq!(position(0), (10, false, false), "the first of equal cells");
    assert_eq!(position(2), (10, false, false), "steep");
    assert_eq!(position(3), (40, true, false), "rising");
    assert_eq!(position(4), (10, false, true), "a light server waits for the load");
    assert_eq!(position(5), (20, true, false), "it was not measured with more connections");
    assert_eq!(sweep.peaks[6], None);
    // Cost per request: 3/4 of 6 µs, plus 0.1 µs for each of 10 connections, plus 0.4 ns for each byte.
    let rate = peak_of(sweep, 2).requests_per_second;
    assert!((rate / (1e9 / 5_551.2) - 1.0).abs() < 0.001, "{rate}");
}

#[test]
fn sweep_requires_enough_closed_loop_cells_of_one_group() {
    let mut cells = echo_cells(&[128, 512], &[1, 10, 20]);
    let rated = |rate| Cell { offered_per_second: Some(rate), ..Cell::echo(128, 10) };
    cells.extend([1_000, 2_000, 3_000, 4_000].map(rated));
    let idle = |connections| Cell { workload: Workload::Idle, ..Cell::echo(1, connections) };
    cells.extend([10, 20, 30, 40].map(idle));
    let of = |cells: Vec<Cell>| sweeps(&simulate(&config_with(1.0, &[], cells), Noise::NONE, &[]));
    assert_eq!(of(cells.clone()), []);
    cells.push(Cell::echo(512, 40));
    let groups: Vec<_> = of(cells).into_iter().map(|sweep| sweep.group).collect();
    assert_eq!(groups, [Cell::echo(512, 1).group()]);
}

#[test]
fn sweep_contains_only_cells_with_same_server_share() {
    let field = [("steep", SimulatedServer::costing(6_000.0).with_cpu_ns_per_connection(100.0))];
    let of = |share: f64, connections: &[usize]| {
        let config = config_with(share, &["steep"], echo_cells(&[128], connections));
        sweeps(&simulate(&config, Noise::NONE, &field))
    };
    let connections = [8, SATURATION_CONNECTIONS_PER_CORE - 1, SATURATION_CONNECTIONS_PER_CORE, 17, 18, 20];
    for (share, highest) in [(1.0, 8), (0.8, SATURATION_CONNECTIONS_PER_CORE)] {
        let all = of(share, &connections);
        let [sweep] = &all[..] else { panic!("{all:?}") };
        assert_eq!(sweep.server_share, share);
        assert_eq!(peak_of(sweep, 2).connections, highest, "with a share of {share}");
    }
    let few = [1, 8, SATURATION_CONNECTIONS_PER_CORE - 1, SATURATION_CONNECTIONS_PER_CORE, 17, 18];
    assert_eq!((of(1.0, &few).len(), of(0.8, &few)), (1, vec![]), "three cells with a share are no sweep");
}

#[test]
fn method_is_stored_and_described_by_cell() {
    for (share, method, saturated) in [
        (0.8, Method::Saturated, "saturated: server limited to 80 % of its core"),
        (1.0, Method::WholeCore, "whole core"),
    ] {
        let config = config_with(share, &[], echo_cells(&[128], &[1, SATURATION_CONNECTIONS_PER_CORE]));
        let mut result = simulate(&config, Noise::NONE, &[]);
        assert_eq!((result.plan.method, result.plan.method()), (Some(method), method));
        let described: Vec<String> =
            result.plan.cells.iter().map(|cell| result.plan.method_description(cell)).collect();
        assert_eq!(described, ["whole core", saturated]);
        let headline = result.findings.iter().find(|finding| finding.kind == FindingKind::Headline).unwrap();
        assert_eq!(headline.method, Some(method));
        result.plan.method = None;
        let json = render_json(&result).unwrap();
        assert!(!json.contains("\"method\": null"));
        assert_eq!(LabResult::from_json(&json).unwrap().plan.method(), method, "derived for older results");
    }
}
