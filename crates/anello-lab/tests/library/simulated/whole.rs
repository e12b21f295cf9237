//! Tests for the whole lab on a simulated machine. The costs of the simulated servers are known, and the verdicts must
//! match them.

use std::cell::Cell as StdCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anello_lab::raw::runs_of;
use anello_lab::result::{Consequence, FindingKind, LabResult, Outcome, Quality, Row, Verdict};
use anello_lab::{
    Contender, LabConfig, LabError, Progress, echo_cells, render_html, render_json, render_table,
};

use crate::simulated::lab::{config_of, run, run_count};
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

const REFERENCE: &str = "bare epoll";
const TWIN: &str = "bare epoll again";

/// Returns a configuration with two cells, the reference, its twin and `others`.
fn config(others: &[&str], seed: u64) -> LabConfig {
    let contender = |name: &str| Contender::new(name, Path::new("server"), &["--name", name]);
    let mut contenders = vec![contender(REFERENCE), contender(REFERENCE).twin()];
    contenders.extend(others.iter().map(|name| contender(name)));
    config_of(contenders, echo_cells(&[128], &[1, 50]), seed)
}

fn reference_servers() -> Vec<(&'static str, SimulatedServer)> {
    vec![(REFERENCE, SimulatedServer::costing(6_000.0)), (TWIN, SimulatedServer::costing(6_000.0))]
}

fn simulate(
    config: &LabConfig,
    noise: Noise,
    others: &[(&'static str, SimulatedServer)],
) -> (Simulation, Result<LabResult, LabError>) {
    let mut servers = reference_servers();
    servers.extend_from_slice(others);
    let simulation = Simulation::new(config.timing.seed, noise, &servers);
    let stop = AtomicBool::new(false);
    let result = run(config, &mut simulation.load(), &mut simulation.machine(), &mut |_| {}, &stop);
    (simulation, result)
}

fn row<'a>(result: &'a LabResult, name: &str, connections: usize) -> &'a Row {
    let cell =
        result.cells.iter().find(|cell| cell.cell.connections == connections).expect("the cell exists");
    cell.rows.iter().find(|row| row.contender == name).expect("the row exists")
}

fn claims(result: &LabResult, name: &str) -> usize {
    let rows = result.cells.iter().flat_map(|cell| &cell.rows).filter(|row| row.contender == name);
    rows.flat_map(|row| [row.comparison.rate_verdict, row.comparison.cpu_verdict])
        .filter(|verdict| matches!(verdict, Verdict::More | Verdict::Less))
        .count()
}

#[test]
fn equal_servers_show_no_difference_in_95_percent_of_runs() {
    let others = ["one", "two"];
    let servers = others.map(|name| (name, SimulatedServer::costing(6_000.0)));
    let (runs, mut quiet_runs) = (run_count(20, 100), 0);
    for seed in 0..runs {
        let (_, result) = simulate(&config(&others, seed as u64), Noise::USUAL, &servers);
        let result = result.unwrap();
        // A run counts only if no verdict claims a difference between the reference and any of the three equal servers.
        let false_claims: usize = [TWIN, "one", "two"].iter().map(|name| claims(&result, name)).sum();
        quiet_runs += usize::from(false_claims == 0);
    }
    assert!(quiet_runs * 100 >= runs * 95, "only {quiet_runs} of {runs} runs claimed nothing");
}

#[test]
fn ten_percent_difference_is_detected_in_95_percent_of_runs() {
    let servers = [("dear", SimulatedServer::costing(6_600.0)), ("cheap", SimulatedServer::costing(5_400.0))];
    let (runs, mut correct_runs) = (run_count(5, 20), 0);
    for seed in 0..runs {
        let (_, result) = simulate(&config(&["dear", "cheap"], seed as u64), Noise::USUAL, &servers);
        let result = result.unwrap();
        let correct = [1, 50].iter().all(|&connections| {
            row(&result, "dear", connections).comparison.cpu_verdict == Verdict::More
                && row(&result, "cheap", connections).comparison.cpu_verdict == Verdict::Less
        });
        correct_runs += usize::from(correct);
    }
    assert!(
        correct_runs * 100 >= runs * 95,
        "only {correct_runs} of {runs} runs detected both differences in both cells"
    );
}

#[test]
fn figures_without_noise_are_exact() {
    let servers = [("dear", SimulatedServer::costing(12_000.0))];
    let (simulation, result) = simulate(&config(&["dear"], 1), Noise::NONE, &servers);
    let result = result.unwrap();
    let dear = row(&result, "dear", 1);
    let figures = dear.figures.as_ref().unwrap();
    // Cost per request: 12 µs, plus 0.4 ns for each of 128 bytes.
    assert!((figures.cpu_ns.median - 12_051.2).abs() < 1.0, "{figures:?}");
    assert!((figures.cpu_low_decile_ns - 12_051.2).abs() < 1.0);
    let ratio = dear.comparison.cpu_ratio.unwrap();
    assert!(
        (ratio.estimate - 12_051.2 / 6_051.2).abs() < 0.001 && ratio.high - ratio.low < 0.001,
        "{ratio:?}"
    );
    assert_eq!((dear.clean_slices, dear.stolen_slices, dear.invalid_slices), (9, 0, 0));
    assert_eq!(row(&result, REFERENCE, 1).comparison.cpu_verdict, Verdict::Reference);
    assert_eq!(row(&result, TWIN, 1).comparison.cpu_verdict, Verdict::NoDifference);
    assert_eq!((simulation.processes_left(), simulation.sessions_left()), (0, 0));
    assert!(result.failures.is_empty());
}

#[test]
fn noisy_machine_gives_verdict_only_on_large_difference() {
    let servers = [("near", SimulatedServer::costing(6_300.0)), ("far", SimulatedServer::costing(40_000.0))];
    let noise = Noise { slice: 0.15, process: 0.12, drift: 0.1, stolen: 0.0, foreign: 0.3, ..Noise::NONE };
    let (_, result) = simulate(&config(&["near", "far"], 3), noise, &servers);
    let result = result.unwrap();
    assert_eq!(row(&result, "near", 50).comparison.cpu_verdict, Verdict::TooNoisy);
    assert_eq!(row(&result, "far", 50).comparison.cpu_verdict, Verdict::More);
    let is_reported = result.findings.iter().any(|finding| {
        finding.kind == FindingKind::Resolution
            && finding.text.starts_with("Too noisy to compare server CPU per request: ")
    });
    assert!(is_reported, "{:?}", result.findings);
    assert!(render_table(&result).contains("- Other programs: used 30\u{a0}% of the cores' time"));
}

#[test]
fn same_seed_gives_same_result_with_different_order_per_round() {
    let servers = [("one", SimulatedServer::costing(6_000.0))];
    let once = simulate(&config(&["one"], 9), Noise::USUAL, &servers).1.unwrap();
    let again = simulate(&config(&["one"], 9), Noise::USUAL, &servers).1.unwrap();
    assert_eq!(once, again);
    let firsts: Vec<usize> = once.slices.chunks(3).map(|round| round[0].contender).collect();
    assert!((0..3).all(|contender| firsts.contains(&contender)), "{firsts:?}");
}

#[test]
fn slices_with_stolen_time_are_repeated_and_excluded() {
    let noise = Noise { stolen: 0.4, ..Noise::USUAL };
    let (_, result) = simulate(&config(&[], 4), noise, &[]);
    let result = result.unwrap();
    let stolen = result.slices.iter().filter(|slice| slice.quality == Quality::Stolen).count();
    let rows: usize = result.cells.iter().flat_map(|cell| &cell.rows).map(|row| row.stolen_slices).sum();
    assert!(stolen > 10 && stolen == rows);
    assert!(result.slices.iter().all(|slice| (slice.stolen_ns == 0) == (slice.quality == Quality::Clean)));
    assert!(result.slices.len() > config(&[], 4).slice_count(), "some were repeated");
    assert!(render_table(&result).contains("(the hypervisor took time from a core)"));
}

#[test]
fn permanently_stolen_time_gives_no_measurements() {
    let (_, result) = simulate(&config(&[], 5), Noise { stolen: 1.0, ..Noise::NONE }, &[]);
    let result = result.unwrap();
    assert_eq!(row(&result, REFERENCE, 1).outcome, Outcome::NotMeasured);
    assert!(render_table(&result).contains("no clean slice: "));
    assert!(render_html(&result).contains("was not measured, so no contender can be compared with it"));
}

#[test]
fn fault_45_contender_failing_to_start_is_skipped() {
    let why = "io_uring_setup: Operation not permitted".to_owned();
    let servers = [("uring", SimulatedServer::costing(5_000.0).with_fault(Fault::CannotStart(why)))];
    let (_, result) = simulate(&config(&["uring"], 1), Noise::USUAL, &servers);
    let result = result.unwrap();
    let uring = row(&result, "uring", 50);
    assert!(matches!(&uring.outcome, Outcome::Skipped(what) if what.contains("not permitted")), "{uring:?}");
    assert_eq!(uring.comparison.cpu_verdict, Verdict::NotComparable);
    assert_eq!(row(&result, TWIN, 50).outcome, Outcome::Measured);
    assert!(result.failures.iter().all(|failure| failure.consequence == Consequence::SkippedPass));
    assert!(render_table(&result).contains("skipped: exited with status 1: io_uring_setup"));
    assert!(
        render_html(&result).contains("uring</th><td class=\"bad\">was not measured: exited with status 1")
    );
}

#[test]
fn fault_45_killed_contender_is_restarted_once_and_measured() {
    // The 9th slice is after the warm-up of a cell and before its last round.
    let servers = [("fragile", SimulatedServer::costing(6_000.0).with_fault(Fault::DiesOnce(9)))];
    let mut config = config(&["fragile"], 2);
    (config.timing.passes, config.timing.rounds) = (5, 3);
    let (simulation, result) = simulate(&config, Noise::USUAL, &servers);
    let result = result.unwrap();
    let restarts: usize =
        [1, 50].iter().map(|&connections| row(&result, "fragile", connections).restarts).sum();
    assert_eq!(restarts, 1);
    assert_eq!(result.failures.len(), 1, "{:?}", result.failures);
    let failure = &result.failures[0];
    assert!(failure.what.starts_with("was killed by signal 9"), "{failure:?}");
    assert_eq!((failure.consequence, failure.cell.is_some()), (Consequence::Restarted, true));
    for connections in [1, 50] {
        let fragile = row(&result, "fragile", connections);
        assert_eq!(fragile.outcome, Outcome::Measured);
        assert!(fragile.clean_slices >= 10, "{fragile:?}");
    }
    assert!(render_table(&result).contains("fragile †"));
    assert_eq!(simulation.processes_left(), 0);
}

#[test]
fn fault_45_repeatedly_killed_contender_fails_only_in_that_cell() {
    let servers = [("small", SimulatedServer::costing(6_000.0).with_fault(Fault::DiesAbove(50)))];
    let (simulation, result) = simulate(&config(&["small"], 2), Noise::USUAL, &servers);
    let result = result.unwrap();
    assert_eq!(row(&result, "small", 1).outcome, Outcome::Measured);
    assert_eq!(row(&result, "small", 1).clean_slices + row(&result, "small", 1).stolen_slices, {
        let all = result.slices.iter();
        all.filter(|slice| slice.contender == 2 && slice.cell == 0).count()
    });
    let failed = row(&result, "small", 50);
    assert!(matches!(&failed.outcome, Outcome::Failed(what) if what.contains("signal 9")), "{failed:?}");
    assert_eq!(failed.figures, None);
    assert_eq!((simulation.processes_left(), simulation.sessions_left()), (0, 0));
}

#[test]
fn fault_45_closed_connection_of_running_contender_is_reported() {
    let servers = [("rude", SimulatedServer::costing(6_000.0).with_fault(Fault::ClosesConnections))];
    let (simulation, result) = simulate(&config(&["rude"], 2), Noise::USUAL, &servers);
    let result = result.unwrap();
    let whats = result.failures.iter().map(|failure| failure.what.as_str());
    assert!(whats.into_iter().all(|what| what == "connection reset (server still running after 5 s)"));
    assert!(matches!(row(&result, "rude", 50).outcome, Outcome::Failed(_)));
    assert_eq!((simulation.processes_left(), simulation.sessions_left()), (0, 0));
}

#[test]
fn wrong_bytes_disqualify_without_restart() {
    let servers = [("liar", SimulatedServer::costing(3_000.0).with_fault(Fault::WrongBytesFrom(1)))];
    let (_, result) = simulate(&config(&["liar"], 2), Noise::USUAL, &servers);
    let result = result.unwrap();
    for connections in [1, 50] {
        let liar = row(&result, "liar", connections);
        assert!(matches!(&liar.outcome, Outcome::Failed(what) if what.contains("wrong bytes")), "{liar:?}");
        assert_eq!((liar.restarts, liar.figures.is_none(), liar.comparison.cpu_ratio), (0, true, None));
    }
    assert_eq!(result.failures.len(), 2, "once in each cell: {:?}", result.failures);
}

#[test]
fn reference_failing_to_start_leaves_figures_without_ratios() {
    let mut servers = reference_servers();
    servers[0].1.fault = Fault::CannotStart("no".to_owned());
    let simulation = Simulation::new(1, Noise::USUAL, &servers);
    let stop = AtomicBool::new(false);
    let result =
        run(&config(&[], 1), &mut simulation.load(), &mut simulation.machine(), &mut |_| {}, &stop).unwrap();
    let twin = row(&result, TWIN, 1);
    assert!(twin.figures.is_some() && twin.comparison.cpu_ratio.is_none());
    assert_eq!(twin.comparison.cpu_verdict, Verdict::NotComparable);
    assert!(render_table(&result).contains("so no contender can be compared with it"));
    assert!(render_html(&result).contains("so no contender can be compared with it"));
}

#[test]
fn run_without_started_contender_fails_with_all_causes() {
    let simulation = Simulation::new(1, Noise::NONE, &[]);
    let stop = AtomicBool::new(false);
    let error = run(&config(&[], 1), &mut simulation.load(), &mut simulation.machine(), &mut |_| {}, &stop);
    let text = error.unwrap_err().to_string();
    assert!(text.contains("bare epoll: cannot start bare epoll: no such program"), "{text}");
}

#[test]
fn invalid_configuration_is_rejected_before_start() {
    let bad = LabConfig { reference: "nobody".to_owned(), ..config(&[], 1) };
    let (simulation, result) = simulate(&bad, Noise::NONE, &[]);
    assert!(matches!(result, Err(LabError::Config(why)) if why.to_string().contains("nobody")));
    assert_eq!(simulation.processes_left(), 0);
}

#[test]
fn stop_ends_run_with_partial_result() {
    let simulation = Simulation::new(1, Noise::USUAL, &reference_servers());
    let stop = AtomicBool::new(false);
    let after = 13;
    let mut progress = |progress: Progress| {
        if let Progress::Slices { done } = progress {
            stop.store(done >= after, Ordering::Relaxed);
        }
    };
    let result =
        run(&config(&[], 1), &mut simulation.load(), &mut simulation.machine(), &mut progress, &stop)
            .unwrap();
    assert!(result.interrupted);
    let first_tries =
        result.slices.iter().map(|slice| (slice.pass, slice.cell, slice.round, slice.contender));
    assert_eq!(first_tries.collect::<std::collections::HashSet<_>>().len(), after);
    assert_eq!((simulation.processes_left(), simulation.sessions_left()), (0, 0));
    assert!(render_table(&result).contains("was stopped early"));
}

#[test]
fn stop_before_start_returns_empty_result() {
    let simulation = Simulation::new(1, Noise::USUAL, &reference_servers());
    let stop = AtomicBool::new(true);
    let result =
        run(&config(&[], 1), &mut simulation.load(), &mut simulation.machine(), &mut |_| {}, &stop).unwrap();
    assert!(result.slices.is_empty() && result.interrupted);
    assert!(render_html(&result).contains("was stopped early"));
    assert!(render_table(&result).contains("was stopped early"));
}

#[test]
fn progress_reaches_announced_count_despite_failures() {
    let simulation = Simulation::new(1, Noise::USUAL, &reference_servers()[1..]);
    let stop = AtomicBool::new(false);
    let (announced, reached) = (StdCell::new(0), StdCell::new(0));
    let mut progress = |progress: Progress| match progress {
        Progress::Begin { slices } => announced.set(slices),
        Progress::Slices { done } => {
            assert!(done >= reached.get(), "progress never decreases");
            reached.set(done);
        }
        _ => {}
    };
    run(&config(&[], 1), &mut simulation.load(), &mut simulation.machine(), &mut progress, &stop).unwrap();
    assert_eq!(announced, reached);
}

#[test]
fn shared_core_is_reported() {
    let mut shared = config(&[], 1);
    shared.cores.load = vec![0];
    let result = simulate(&shared, Noise::USUAL, &[]).1.unwrap();
    assert!(render_table(&result).contains("share core 0"));
    assert!(render_html(&result).contains("share core 0"));
}

#[test]
fn json_round_trip_preserves_result() {
    let result = simulate(&config(&[], 1), Noise::USUAL, &[]).1.unwrap();
    let json = render_json(&result).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((value["schema"].as_str(), value["schema_version"].as_u64()), (Some("anello-lab"), Some(3)));
    let back = LabResult::from_json(&json).unwrap();
    assert_eq!(back.slices, result.slices);
    assert_eq!(back.findings, result.findings);
    assert_eq!(render_table(&back), render_table(&result));
}

#[test]
fn load_driver_uring_is_read_as_io_uring() {
    for (written, read) in [("uring", "io_uring"), ("io_uring", "io_uring"), ("epoll", "epoll")] {
        let mut config = config(&[], 1);
        config.provenance.load_driver = Some(written.to_owned());
        let result = simulate(&config, Noise::NONE, &[]).1.unwrap();
        assert_eq!(result.plan.load_driver.as_deref(), Some(written));
        let back = LabResult::from_json(&render_json(&result).unwrap()).unwrap();
        assert_eq!(back.plan.load_driver.as_deref(), Some(read));
    }
}

#[test]
fn table_lines_are_at_most_110_columns() {
    let why = "a very long explanation of what went wrong, ".repeat(12);
    let servers = [
        ("a contender with a name that goes on and on", SimulatedServer::costing(1_234_567.0)),
        ("broken", SimulatedServer::costing(1.0).with_fault(Fault::CannotStart(why))),
    ];
    let names = servers.each_ref().map(|(name, _)| *name);
    let result = simulate(&config(&names, 1), Noise::USUAL, &servers).1.unwrap();
    let table = render_table(&result);
    for line in table.lines() {
        assert!(line.chars().count() <= 110, "{} columns: {line}", line.chars().count());
        assert_eq!(line, line.trim_end());
    }
}

#[test]
fn page_is_self_contained_and_escapes_text() {
    let hostile = "</script><img src=x onerror=alert(1)> & 'quoted'".to_owned();
    let servers = [("bad", SimulatedServer::costing(1.0).with_fault(Fault::CannotStart(hostile)))];
    let result = simulate(&config(&["bad"], 1), Noise::USUAL, &servers).1.unwrap();
    let page = render_html(&result);
    assert!(!page.contains("<img"), "escaped");
    assert_eq!(page.matches("</script>").count(), page.matches("<script").count(), "no script ends early");
    assert!(!page.contains("src=\"http") && !page.contains("@import") && !page.contains("href=\"http"));
    assert!(page.contains("color-scheme: light dark") && page.contains("width=device-width"));
    assert_eq!(runs_of(&page).unwrap()[0].failures, result.failures);
}

#[test]
fn reports_are_written_and_invalid_directory_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let result = simulate(&config(&[], 1), Noise::USUAL, &[]).1.unwrap();
    let paths = anello_lab::write_reports(&result, &directory.path().join("new")).unwrap();
    for path in [&paths.json, &paths.html, &paths.table] {
        assert!(std::fs::metadata(path).unwrap().len() > 1000, "{}", path.display());
    }
    // Existing files are replaced, not overwritten, so that a write error does not destroy an existing report.
    let checkpoint = directory.path().join("checkpoint");
    std::fs::hard_link(&paths.json, &checkpoint).unwrap();
    let before = std::fs::read_to_string(&checkpoint).unwrap();
    let other = LabResult { notes: vec!["another".to_owned()], ..result.clone() };
    anello_lab::write_reports(&other, &directory.path().join("new")).unwrap();
    assert_ne!(std::fs::read_to_string(&paths.json).unwrap(), before);
    assert_eq!(std::fs::read_to_string(&checkpoint).unwrap(), before);
    let error = anello_lab::write_reports(&result, &paths.json).unwrap_err().to_string();
    assert!(error.contains("cannot write") && error.contains("choose another directory"), "{error}");
}

#[test]
fn unknown_version_or_format_is_rejected() {
    let result = simulate(&config(&[], 1), Noise::NONE, &[]).1.unwrap();
    let json = render_json(&result).unwrap();
    let old = json.replace("\"schema_version\": 3", "\"schema_version\": 1");
    assert_ne!(old, json);
    let error = LabResult::from_json(&old).unwrap_err().to_string();
    assert!(error.contains("version 1") && error.contains("reads versions 2 and 3"), "{error}");
    assert!(LabResult::from_json("{}").unwrap_err().to_string().contains("not a lab result"));
    assert!(LabResult::from_json("[").unwrap_err().to_string().contains("not the JSON"));
    let damaged = json.replace("\"findings\"", "\"findlings\"");
    assert!(LabResult::from_json(&damaged).unwrap_err().to_string().contains("damaged"));
}
