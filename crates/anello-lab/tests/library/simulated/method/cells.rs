//! Tests for each kind of cell: limits, offered rates, idle connections, disks, and stored latencies.

use anello_lab::measure::Measure;
use anello_lab::result::{FindingKind, Outcome, Verdict};
use anello_lab::{Cell, DiskOperation, LabConfig, Workload, echo_cells, render_markdown};

use super::{REFERENCE, TWIN, config, row, servers, simulate, simulate_on, texts};
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

#[test]
fn cells_above_limit_are_reported_as_beyond_limit() {
    let mut config = config(&["small", "single"], Vec::new(), 1);
    config.cores.server = vec![0, 1];
    config.cells = echo_cells(&[128], &[50, 500]);
    config.cells.push(Cell { server_cores: 2, ..Cell::echo(128, 50) });
    config.contenders[2].connections_limit = Some(100);
    config.contenders[3].arguments.clear();
    let field = ["small", "single"].map(|name| (name, SimulatedServer::costing(6_000.0)));
    let result = simulate(&config, Noise::USUAL, &field);
    let outcome = |cell: usize, name: &str| row(&result.cells[cell], name).outcome.clone();
    assert_eq!(outcome(0, "small"), Outcome::Measured);
    assert!(matches!(outcome(1, "small"), Outcome::BeyondLimit(why) if why.contains("100 connections")));
    assert_eq!(outcome(2, "small"), Outcome::Measured);
    assert_eq!((outcome(0, "single"), outcome(1, "single")), (Outcome::Measured, Outcome::Measured));
    assert!(matches!(outcome(2, "single"), Outcome::BeyondLimit(why) if why.contains("one core")));
    assert_eq!(result.failures, []);
}

#[test]
fn connections_above_limit_are_opened_per_slice() {
    let config = config(&[], echo_cells(&[128], &[10, 100]), 1);
    let simulation = Simulation::new(1, Noise::USUAL, &servers(&[])).with_max_open_connections(150);
    let result = simulate_on(&simulation, &config, None).unwrap();
    assert!(result.cells.iter().all(|cell| row(cell, TWIN).outcome == Outcome::Measured));
    assert_eq!((simulation.max_open_sessions(), simulation.sessions_left()), (2, 0), "2 in the small cell");
    let large = LabConfig { cells: echo_cells(&[128], &[100]), ..config };
    let simulation = Simulation::new(1, Noise::USUAL, &servers(&[])).with_max_open_connections(150);
    simulate_on(&simulation, &large, None).unwrap();
    assert_eq!(simulation.max_open_sessions(), 1, "one at a time in the large one");
}

#[test]
fn throttle_error_is_noted_once() {
    let config = config(&[], echo_cells(&[1, 128], &[4, 50]), 1);
    let simulation = Simulation::new(1, Noise::NONE, &servers(&[])).with_throttle_error("no such core");
    let result = simulate_on(&simulation, &config, None).unwrap();
    let notes: Vec<&String> = result.notes.iter().filter(|note| note.contains("no such core")).collect();
    assert_eq!(notes.len(), 1, "{:?}", result.notes);
    let few = LabConfig { cells: echo_cells(&[1], &[4]), ..config };
    assert_eq!(simulate_on(&simulation, &few, None).unwrap().notes, [""; 0], "no server is throttled there");
}

#[test]
fn restarted_contender_releases_connections_above_limit() {
    let mut config = config(&["fragile"], echo_cells(&[128], &[100]), 1);
    config.timing.rounds = 3;
    let fragile = SimulatedServer::costing(6_000.0).with_fault(Fault::DiesOnce(3));
    let field = servers(&[("fragile", fragile)]);
    let simulation = Simulation::new(1, Noise::NONE, &field).with_max_open_connections(250);
    let result = simulate_on(&simulation, &config, None).unwrap();
    assert_eq!(row(&result.cells[0], "fragile").restarts, 1, "{:?}", result.failures);
    assert_eq!((simulation.max_open_sessions(), simulation.sessions_left()), (1, 0));
}

#[test]
fn offered_rates_compare_latency_and_cpu_and_report_overloaded_servers() {
    let rated = |rate| Cell { offered_per_second: Some(rate), ..Cell::echo(128, 80) };
    let config = config(&["slow", "dear"], vec![rated(20_000), rated(100_000)], 1);
    let field = [("slow", SimulatedServer::costing(30_000.0)), ("dear", SimulatedServer::costing(9_000.0))];
    let result = simulate(&config, Noise::USUAL, &field);
    let dear = row(&result.cells[0], "dear");
    assert_eq!(
        (dear.comparison.rate_ratio, dear.comparison.rate_verdict),
        (None, Verdict::NotComparable),
        "the rate is given"
    );
    assert_eq!(dear.comparison.cpu_verdict, Verdict::More);
    assert_eq!(
        (dear.comparison.p50_verdict, dear.comparison.p99_verdict),
        (Verdict::More, Verdict::More),
        "{dear:?}"
    );
    let figures = dear.figures.as_ref().unwrap();
    assert_eq!(figures.rate_reached, Some(true));
    assert!(figures.uncorrected_p99_ns.is_some());
    let behind = row(&result.cells[1], "slow").figures.as_ref().unwrap();
    assert_eq!(behind.rate_reached, Some(false));
    assert!(behind.reached_fraction.unwrap() < 0.5);
    let is_overload =
        |finding: &&anello_lab::result::Finding| finding.text.starts_with("Offered rate not reached");
    let finding = result.findings.iter().find(is_overload).expect("the overload is reported");
    assert!(
        finding.text.contains("slow at 80 connections, 128 bytes, 100,000 requests/s offered"),
        "{finding:?}"
    );
    assert!(!finding.text.contains("at 80 connections, 128 bytes, 20,000"), "{finding:?}");
    assert!(
        Measure::P99.resolution(&result.cells[0]).is_some()
            && Measure::Rate.resolution(&result.cells[0]).is_none()
    );
}

#[test]
fn late_requests_are_attributed_to_server_or_load() {
    let cell = Cell { offered_per_second: Some(1_000), ..Cell::echo(128, 50) };
    let config = config(&["one"], vec![cell], 1);
    let mut result = simulate(&config, Noise::USUAL, &[("one", SimulatedServer::costing(6_000.0))]);
    assert_eq!(row(&result.cells[0], "one").figures.as_ref().unwrap().late_fraction, Some(0.0));
    let quiet = texts(&result, FindingKind::Caution).join("\n");
    assert!(!quiet.contains("more than 1 ms late") && !quiet.contains("behind schedule"), "{quiet}");
    for slice in &mut result.slices {
        slice.late = slice.offered.unwrap_or(0) / 10;
        slice.load_busy = if slice.contender == 2 { 1.0 } else { 0.3 };
    }
    anello_lab::analysis::analyse(&mut result);
    assert!(row(&result.cells[0], "one").figures.as_ref().unwrap().load_bottleneck);
    let cautions = texts(&result, FindingKind::Caution).join("\n");
    assert!(cautions.contains("or not at all: bare epoll at 50 connections"), "{cautions}");
    assert!(cautions.contains("server was not busy: one at 50 connections"), "{cautions}");
}

#[test]
fn late_load_does_not_report_server_as_overloaded() {
    let cell = Cell { offered_per_second: Some(1_000), ..Cell::echo(128, 50) };
    let config = config(&["one"], vec![cell], 1);
    let mut result = simulate(&config, Noise::NONE, &[("one", SimulatedServer::costing(6_000.0))]);
    for slice in &mut result.slices {
        let offered = slice.offered.unwrap_or(0);
        (slice.requests, slice.unsent) = (offered / 2, offered / 2);
        slice.load_busy = if slice.contender == 2 { 1.0 } else { 0.3 };
    }
    anello_lab::analysis::analyse(&mut result);
    let cautions = texts(&result, FindingKind::Caution);
    let behind = cautions.iter().find(|text| text.starts_with("Offered rate not reached"));
    let behind = behind.expect("the overload is reported");
    assert!(behind.contains("bare epoll at 50 connections") && !behind.contains("one at 50"), "{behind}");
    let load = cautions.iter().find(|text| text.starts_with("Load generator behind schedule"));
    let load = load.expect("the late load is reported");
    assert!(load.contains("one at 50 connections") && !load.contains("bare epoll"), "{load}");
}

#[test]
fn cell_is_either_load_bound_or_equally_busy() {
    // The load generator needs 3 µs per request. The servers need 1.3 µs at 50 connections and 3.8 µs at 300.
    let server = SimulatedServer::costing(1_000.0).with_cpu_ns_per_connection(10.0);
    let simulation = Simulation::new(1, Noise::NONE, &[(REFERENCE, server.clone()), (TWIN, server)]);
    let result = simulate_on(&simulation, &config(&[], echo_cells(&[128], &[50, 300]), 1), None).unwrap();
    let cautions = texts(&result, FindingKind::Caution).join("\n");
    assert!(
        cautions.contains(
            "The load generator is the bottleneck: 50 connections, 128 bytes (bare epoll was not busy all the time;"
        ),
        "{cautions}"
    );
    assert!(
        cautions.contains(
            "The load generator was as busy as the servers: in 1 of 2 cells with several connections"
        ),
        "{cautions}"
    );
}

#[test]
fn idle_connection_memory_uses_new_processes() {
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
    let config = config(&["large"], vec![idle], 1);
    let large = SimulatedServer::costing(6_000.0).with_bytes_per_connection(8192);
    let simulation = Simulation::new(1, Noise::USUAL, &servers(&[("large", large)]));
    let result = simulate_on(&simulation, &config, None).unwrap();
    let large = row(&result.cells[0], "large");
    let bytes = large.memory_per_connection_bytes.expect("measured").median;
    assert!((8_000.0..8_400.0).contains(&bytes), "{bytes}");
    assert_eq!(
        (large.comparison.memory_verdict, large.comparison.cpu_verdict),
        (Verdict::More, Verdict::NotComparable)
    );
    assert_eq!(row(&result.cells[0], TWIN).comparison.memory_verdict, Verdict::NoDifference);
    assert!(large.figures.is_none());
    assert_eq!(
        simulation.processes_started(),
        3 * config.timing.passes * config.timing.rounds,
        "one for each slice"
    );
    assert_eq!((simulation.processes_left(), simulation.sessions_left()), (0, 0));
    let has_finding = |text: &str| result.findings.iter().any(|finding| finding.text.contains(text));
    let tables = render_markdown(std::slice::from_ref(&result));
    let standings =
        tables.split("\nContenders against bare epoll: ").nth(1).unwrap_or_else(|| panic!("{tables}"));
    assert!(standings.contains("| server | memory per connection (less is better) |"), "{standings}");
    assert!(standings.contains("\n| large | 0 / 0 / 1 (× "), "{standings}");
    assert!(has_finding("No server beats bare epoll on memory in 1 cell."), "{:?}", result.findings);
    assert!(has_finding("kernel memory per connection, which differs between servers, was not measured"));
}

#[test]
fn one_time_allocation_is_excluded_from_connection_memory() {
    let cells =
        [1, 11, 1000].map(|connections| Cell { workload: Workload::Idle, ..Cell::echo(1, connections) });
    let once = SimulatedServer::costing(6_000.0).with_base_bytes(5 << 20);
    let result = simulate(&config(&["once"], cells.to_vec(), 1), Noise::NONE, &[("once", once)]);
    let memory = |cell: usize| row(&result.cells[cell], "once").memory_per_connection_bytes.unwrap().median;
    assert_eq!((memory(1), memory(2)), (4096.0, 4096.0));
    assert!(memory(0) > 5e6, "a single connection includes the one-time allocation");
    let before =
        |cell: usize| result.slices.iter().find(|slice| slice.cell == cell).unwrap().connections_before;
    assert_eq!([0, 1, 2].map(before), [0, 5, 10]);
}

#[test]
fn connections_without_memory_give_no_ratio() {
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
    let nothing = SimulatedServer::costing(6_000.0).with_bytes_per_connection(0);
    let result = simulate(&config(&["nothing"], vec![idle], 1), Noise::NONE, &[("nothing", nothing)]);
    let nothing = row(&result.cells[0], "nothing");
    assert_eq!(
        (nothing.comparison.memory_ratio, nothing.comparison.memory_verdict),
        (None, Verdict::NotComparable)
    );
    assert_eq!(nothing.memory_per_connection_bytes.unwrap().median, 0.0);
}

#[test]
fn disk_findings_refer_to_operations() {
    let workload = Workload::Disk { operation: DiskOperation::RandomRead, direct: true, block_bytes: 4096 };
    let cells = [1, 16].map(|depth| Cell { workload, ..Cell::echo(1, depth) });
    let result = simulate(
        &config(&["uring"], cells.to_vec(), 1),
        Noise::USUAL,
        &[("uring", SimulatedServer::costing(3_000.0))],
    );
    let text = &result.findings[0].text;
    assert!(text.contains("less CPU per operation than bare epoll in 2 of 2 cells"), "{text}");
    assert!(result.findings.iter().all(|finding| !finding.text.contains("not checked")));
}

#[test]
fn latencies_of_clean_slices_are_stored() {
    let result = simulate(&config(&[], echo_cells(&[128], &[50]), 1), Noise::USUAL, &[]);
    for (contender, row) in result.cells[0].rows.iter().enumerate() {
        let record = result.latencies.iter().find(|record| record.contender == contender).unwrap();
        let histogram = anello_lab::latency::decode(&record.histogram).unwrap();
        assert_eq!(histogram.len() as usize, 100 * row.clean_slices);
        assert_eq!(row.latency_curve, anello_lab::latency::curve(&histogram));
        assert_eq!(row.latency_curve.last().unwrap().0, 1.0);
    }
    let figures = result.cells[0].rows[0].figures.as_ref().unwrap();
    assert!(
        figures.p50_ns.median <= figures.p90_ns.median && figures.p90_ns.median <= figures.p999_ns.median
    );
    assert!(figures.max_ns as f64 >= figures.p999_ns.median);
    assert!(figures.switches_per_request.is_some() && figures.load_busy > 0.9);
}
