//! Tests for contenders: failed checks, CPU use when idle, start failures, comparisons with peers, and the headline.

use anello_lab::findings::{self, Standing};
use anello_lab::measure::Measure;
use anello_lab::peers::Kind;
use anello_lab::result::{Consequence, FindingKind, Outcome, Verdict};
use anello_lab::{LabConfig, LabResult, Role, echo_cells, render_markdown};

use super::{REFERENCE, TWIN, config, row, servers, simulate, simulate_on, texts};
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

#[test]
fn contender_failing_check_is_reported_and_not_measured() {
    let losing = SimulatedServer::costing(1_000.0).with_fault(Fault::LosesBytes);
    let config = LabConfig { check: true, ..config(&["loser"], echo_cells(&[128], &[1, 50]), 1) };
    let result = simulate(&config, Noise::USUAL, &[("loser", losing)]);
    for cell in &result.cells {
        let loser = row(cell, "loser");
        assert!(matches!(&loser.outcome, Outcome::CheckFailed(why) if why.contains("1048576")), "{loser:?}");
        assert_eq!((loser.figures.is_none(), loser.comparison.cpu_verdict), (true, Verdict::NotComparable));
        assert_eq!(row(cell, TWIN).outcome, Outcome::Measured);
    }
    assert!(result.slices.iter().all(|slice| slice.contender != 2));
    let failed: Vec<_> = result.checks.iter().filter(|check| !check.passed).collect();
    assert_eq!((failed.len(), failed[0].what.as_str()), (1, "stalled reader"));
    // Three checks for the reference, none for its twin, and two for "loser".
    assert_eq!(result.checks.len(), 5);
    assert_eq!(result.failures[0].consequence, Consequence::NotTimed);
    let is_reported =
        |finding: &anello_lab::result::Finding| finding.text.starts_with("loser: failed its check");
    assert!(result.findings.iter().any(is_reported), "{:?}", result.findings);
}

#[test]
fn reference_failing_check_excludes_twin() {
    let mut field = servers(&[("one", SimulatedServer::costing(6_000.0))]);
    field[0].1.fault = Fault::LosesBytes;
    let config = LabConfig { check: true, ..config(&["one"], echo_cells(&[128], &[1]), 1) };
    let result = simulate_on(&Simulation::new(1, Noise::USUAL, &field), &config, None).unwrap();
    for name in [REFERENCE, TWIN] {
        assert!(matches!(row(&result.cells[0], name).outcome, Outcome::CheckFailed(_)), "{name}");
    }
    assert!(row(&result.cells[0], "one").figures.is_some());
}

#[test]
fn contender_busy_when_idle_is_suspended_during_other_slices() {
    let config = config(&["restless", "calm"], echo_cells(&[128], &[50]), 3);
    let all = servers(&[
        ("restless", SimulatedServer::costing(6_000.0).with_fault(Fault::BusyWhenIdle(0.3))),
        ("calm", SimulatedServer::costing(6_000.0)),
    ]);
    let result = simulate(&config, Noise::NONE, &all);
    let record = |name: &str| result.contenders.iter().find(|contender| contender.name == name).unwrap();
    assert_eq!(record("restless").idle_cpu_fraction, Some(0.3));
    assert_eq!(record("calm").idle_cpu_fraction, None);
    let findings = texts(&result, FindingKind::Resolution);
    let suspended =
        findings.iter().find(|text| text.starts_with("Suspended during other contenders' slices"));
    assert!(suspended.is_some_and(|text| text.ends_with(": restless (30\u{a0}% of a core)")), "{findings:?}");
    assert!(result.failures.is_empty(), "{:?}", result.failures);
    // All costs are equal: "restless" does not disturb other contenders, and is not suspended in its own slices.
    let costs: Vec<f64> =
        result.cells[0].rows.iter().map(|row| row.figures.as_ref().unwrap().cpu_ns.median).collect();
    assert!(costs.iter().all(|cost| (cost - costs[0]).abs() < 1.0), "{costs:?}");
}

#[test]
fn contender_busy_when_idle_is_suspended_in_skipped_cells() {
    let mut config = config(&["restless"], echo_cells(&[128], &[50]), 3);
    config.contenders[2].connections_limit = Some(10);
    let calm = simulate(&config, Noise::NONE, &[("restless", SimulatedServer::costing(6_000.0))]);
    let restless = SimulatedServer::costing(6_000.0).with_fault(Fault::BusyWhenIdle(0.3));
    let result = simulate(&config, Noise::NONE, &[("restless", restless)]);
    assert!(matches!(row(&result.cells[0], "restless").outcome, Outcome::BeyondLimit(_)));
    assert_eq!(result.contenders[2].idle_cpu_fraction, Some(0.3));
    let cost =
        |result: &LabResult, name: &str| row(&result.cells[0], name).figures.as_ref().unwrap().cpu_ns.median;
    for name in [REFERENCE, TWIN] {
        assert_eq!(cost(&result, name), cost(&calm, name), "not disturbed in any pass");
    }
}

#[test]
fn contender_failing_to_start_is_skipped_for_one_pass() {
    let mut config = config(&["late", "once"], echo_cells(&[128], &[1, 50]), 3);
    (config.timing.passes, config.timing.rounds) = (3, 2);
    let field = [
        ("late", SimulatedServer::costing(6_000.0).with_fault(Fault::CannotStartOnce)),
        ("once", SimulatedServer::costing(6_000.0).with_fault(Fault::StartsOnce)),
    ];
    let result = simulate(&config, Noise::NONE, &field);
    let passes = |contender: usize| -> Vec<usize> {
        let slices = result.slices.iter().filter(|slice| slice.contender == contender);
        let mut passes: Vec<usize> = slices.map(|slice| slice.pass).collect();
        passes.sort_unstable();
        passes.dedup();
        passes
    };
    assert_eq!((passes(2), passes(3)), (vec![1, 2], vec![0]));
    let mut skipped: Vec<(&str, usize, Consequence)> = result
        .failures
        .iter()
        .map(|failure| (failure.contender.as_str(), failure.pass, failure.consequence))
        .collect();
    skipped.sort_by_key(|&(name, pass, _)| (name, pass));
    let expected = [("late", 0), ("once", 1), ("once", 2)];
    assert_eq!(skipped, expected.map(|(name, pass)| (name, pass, Consequence::SkippedPass)));
}

#[test]
fn skipped_contender_is_reported_as_not_measured() {
    let mut config = config(&["late"], echo_cells(&[128], &[1, 50]), 3);
    config.timing.passes = 5;
    let late = SimulatedServer::costing(6_000.0).with_fault(Fault::CannotStartOnce);
    let mut result = simulate(&config, Noise::NONE, &[("late", late)]);
    assert_eq!(texts(&result, FindingKind::Failure), Vec::<&str>::new(), "measured in all cells");
    // Remove the slices of "late" in the first cell, as if the run had been stopped earlier.
    result.slices.retain(|slice| (slice.contender, slice.cell) != (2, 0));
    anello_lab::analysis::analyse(&mut result);
    assert!(matches!(row(&result.cells[0], "late").outcome, Outcome::Skipped(_)));
    let findings = texts(&result, FindingKind::Failure);
    assert_eq!(
        findings,
        ["late: was not measured at 1 connection, 128 bytes: exited with status 1: first start fails"]
    );
    // Remove all slices of "late".
    result.slices.retain(|slice| slice.contender != 2);
    anello_lab::analysis::analyse(&mut result);
    let findings = texts(&result, FindingKind::Failure);
    assert_eq!(findings, ["late: was not measured: exited with status 1: first start fails"]);
}

/// Returns a configuration with anello on both drivers, a peer on each driver, and a peer with an unknown driver.
fn field_with_peers() -> LabConfig {
    let names = ["anello io_uring", "anello epoll", "ring", "tokio", "other"];
    let mut config = config(&names, echo_cells(&[128], &[1, 50]), 1);
    for contender in &mut config.contenders[2..] {
        let driver = match contender.name.as_str() {
            "anello io_uring" | "ring" => Some("io_uring"),
            "other" => None,
            _ => Some("epoll"),
        };
        contender.driver = driver.map(str::to_owned);
        if contender.name.starts_with("anello") {
            contender.role = Role::Anello;
        }
    }
    config
}

/// Returns the servers of [`field_with_peers`] with these costs per request.
fn field_costing(costs_ns: [f64; 5]) -> [(&'static str, SimulatedServer); 5] {
    let names = ["anello io_uring", "anello epoll", "ring", "tokio", "other"];
    std::array::from_fn(|index| (names[index], SimulatedServer::costing(costs_ns[index])))
}

/// Returns the result of a run with equal servers that report the drivers in [`field_with_peers`].
fn equal_field_with_drivers() -> LabResult {
    let mut result = simulate(&field_with_peers(), Noise::USUAL, &field_costing([6_000.0; 5]));
    for (record, contender) in result.contenders.iter_mut().zip(&field_with_peers().contenders) {
        record.driver.clone_from(&contender.driver);
    }
    anello_lab::analysis::analyse(&mut result);
    result
}

#[test]
fn peers_with_unknown_driver_are_compared_and_lost_cell_is_reported() {
    let field = field_costing([5_000.0, 6_000.0, 6_500.0, 5_200.0, 9_000.0]);
    // The simulated servers report "driver=simulated", which has no driver family, so all peers are compared.
    let result = simulate(&field_with_peers(), Noise::USUAL, &field);
    assert_eq!(result.peer_comparisons.len(), 2 * 3 * 2);
    let headline = texts(&result, FindingKind::Headline)[0];
    assert!(
        headline.starts_with("anello io_uring beats 3 peers on CPU in 5 of 6 comparisons, loses 0"),
        "{headline}"
    );
    let decision = |index: usize| findings::decision(&result, &result.contenders[index]).unwrap();
    assert_eq!((decision(2).peers.as_str(), decision(2).lost.len()), ("3 peers", 0));
    let epoll = decision(3);
    // 6,000 ns is 15 % more than 5,200 ns. The measured difference varies with the simulated process factors.
    let lost =
        epoll.lost.iter().find(|(measure, pair)| *measure == Measure::Cpu && pair.cell.connections == 1);
    let (_, pair) = lost.unwrap_or_else(|| panic!("{epoll:?}"));
    let ratio = pair.comparison.cpu_ratio.unwrap().estimate;
    assert!(pair.peer == "tokio" && (1.13..1.18).contains(&ratio), "{pair:?}");
    let table = render_markdown(std::slice::from_ref(&result));
    let line = format!(
        "| anello epoll | tokio | 1 connection, 128 bytes | server CPU per request | whole core | **▲ {ratio:.2} ("
    );
    assert!(
        table.contains("\nCells in which a peer is significantly better\n") && table.contains(&line),
        "{table}"
    );
    let standings = ["anello io_uring", "anello epoll"].map(|own| {
        let standings = table.split(&format!("\n{own} against peers")).nth(1).unwrap();
        standings.split("\n\n").nth(2).unwrap().lines().count()
    });
    assert_eq!(standings, [2 + 3, 2 + 3], "{table}");
    assert!(table.contains("| ring | 2 / 0 / 0 (× 0.7"), "{table}");
}

#[test]
fn peers_with_driver_are_compared_within_driver_family() {
    let result = equal_field_with_drivers();
    let mut pairs: Vec<(&str, &str)> = result
        .peer_comparisons
        .iter()
        .map(|versus| (versus.contender.as_str(), versus.peer.as_str()))
        .collect();
    pairs.dedup();
    let expected = [
        ("anello io_uring", "ring"),
        ("anello epoll", "tokio"),
        ("anello io_uring", "other"),
        ("anello epoll", "other"),
    ];
    assert_eq!(pairs, expected);
}

#[test]
fn async_runtimes_with_other_io_are_compared_separately() {
    let mut config = field_with_peers();
    for contender in config.contenders.iter_mut().filter(|contender| contender.name == "tokio") {
        contender.kind = Some(Kind::Runtime);
    }
    let field = field_costing([5_000.0, 6_000.0, 6_500.0, 5_000.0, 9_000.0]);
    let mut result = simulate(&config, Noise::USUAL, &field);
    for (record, contender) in result.contenders.iter_mut().zip(&config.contenders) {
        record.driver.clone_from(&contender.driver);
    }
    anello_lab::analysis::analyse(&mut result);
    let pairs = result.runtime_comparisons.iter();
    let pairs: Vec<(&str, &str)> =
        pairs.map(|versus| (versus.contender.as_str(), versus.peer.as_str())).collect();
    assert_eq!(pairs, [("anello io_uring", "tokio"); 2], "one for each cell");
    let standings = |result: &LabResult| -> Vec<(String, Vec<Standing>)> {
        let all =
            ["anello io_uring", "anello epoll"].into_iter().flat_map(|own| findings::runtimes(result, own));
        all.map(|(runtime, standings)| (runtime.to_owned(), standings)).collect()
    };
    let [(first, level), (second, behind)] = &standings(&result)[..] else { panic!("{result:?}") };
    assert_eq!((first.as_str(), second.as_str()), ("tokio", "tokio"));
    assert_eq!(level, &[Standing::Equal]);
    assert!(matches!(behind[..], [Standing::Behind(Measure::Cpu, ratio)] if ratio > 1.1), "{behind:?}");
    let table = render_markdown(std::slice::from_ref(&result));
    assert!(table.contains("| anello io_uring against tokio | 1 | 0 | 1 | 0 | 0 |  |\n"), "{table}");
    assert!(table.contains("| anello epoll against tokio | 1 | 0 | 0 | 1 | 0 | × 1."), "{table}");
    let slower = result.slices.iter_mut().filter(|slice| slice.contender == 5);
    slower.for_each(|slice| {
        (slice.cpu_ns, slice.elapsed_ns) = (slice.cpu_ns * 3 / 2, slice.elapsed_ns * 3 / 2)
    });
    anello_lab::analysis::analyse(&mut result);
    let ahead = ("tokio".to_owned(), vec![Standing::Ahead]);
    assert_eq!(standings(&result), [ahead.clone(), ahead]);
}

#[test]
fn every_peer_is_compared_and_findings_include_same_driver_family_only() {
    let field = field_costing([5_000.0, 6_000.0, 9_000.0, 9_000.0, 9_000.0]);
    let mut result = simulate(&field_with_peers(), Noise::USUAL, &field);
    for (record, contender) in result.contenders.iter_mut().zip(&field_with_peers().contenders) {
        record.driver.clone_from(&contender.driver);
        record.kind = (record.name == "tokio").then_some(Kind::Loop);
    }
    anello_lab::analysis::analyse(&mut result);
    let mut compared: Vec<String> = result
        .all_pair_comparisons()
        .map(|versus| format!("{}, {}, {}", versus.contender, versus.peer, versus.cell))
        .collect();
    compared.sort_unstable();
    compared.dedup();
    assert_eq!(
        (compared.len(), result.all_pair_comparisons().count()),
        (2 * 3 * 2, 2 * 3 * 2),
        "each pair once: {compared:?}"
    );
    let others = result.other_comparisons.iter();
    let mut pairs: Vec<(&str, &str)> =
        others.map(|versus| (versus.contender.as_str(), versus.peer.as_str())).collect();
    pairs.dedup();
    assert_eq!(pairs, [("anello epoll", "ring"), ("anello io_uring", "tokio")]);
    assert!(result.other_comparisons.iter().all(|versus| versus.comparison.cpu_verdict == Verdict::Less));
    let decisions = |result: &LabResult| {
        [2, 3].map(|own| {
            let decision = findings::decision(result, &result.contenders[own]).unwrap();
            (decision.peers.clone(), decision.comparisons(), decision.lost.len())
        })
    };
    // Two measures in two cells.
    let expected =
        [("2 non-epoll peers".to_owned(), 2 * 4, 0), ("2 non-io_uring peers".to_owned(), 2 * 4, 0)];
    assert_eq!(decisions(&result), expected);
    result.contenders.iter_mut().filter(|record| record.name == "other").for_each(|record| {
        record.driver = Some("io_uring".to_owned());
    });
    anello_lab::analysis::analyse(&mut result);
    let expected = [("2 io_uring peers".to_owned(), 2 * 4, 0), ("1 epoll peer".to_owned(), 4, 0)];
    assert_eq!(decisions(&result), expected);
    let headline = texts(&result, FindingKind::Headline)[0];
    assert!(headline.starts_with("anello io_uring beats 2 io_uring peers on CPU in "), "{headline}");
}

#[test]
fn add_missing_adds_other_pairs_to_old_run() {
    let result = equal_field_with_drivers();
    let mut old: serde_json::Value =
        serde_json::from_str(&anello_lab::render_json(&result).unwrap()).unwrap();
    old.as_object_mut().unwrap().remove("other_comparisons").expect("the result has the field");
    let mut read = LabResult::from_json(&old.to_string()).unwrap();
    assert_eq!((read.other_comparisons.len(), result.other_comparisons.len()), (0, 2 * 2));
    anello_lab::analysis::backfill(&mut read);
    assert_eq!(read, result);
}

#[test]
fn contender_costlier_in_one_cell_is_not_cheapest() {
    let config = config(&["steep"], echo_cells(&[128], &[1, 300]), 1);
    // At one connection, "steep" costs 4 µs and the reference 6 µs. At 300 connections, "steep" costs 4.5 µs more.
    let steep = SimulatedServer::costing(4_000.0).with_cpu_ns_per_connection(15.0);
    let result = simulate(&config, Noise::USUAL, &[("steep", steep)]);
    let text = texts(&result, FindingKind::Headline)[0].replace('\u{a0}', " ");
    assert!(text.starts_with("steep is among the cheapest: 3"), "{text}");
    assert!(text.ends_with(" % less CPU than bare epoll in 1 of 2 cells (both methods)."), "{text}");
    let tables = render_markdown(std::slice::from_ref(&result));
    assert!(tables.contains("| steep | 1 / 0 / 1 (× "), "{tables}");
}

#[test]
fn headline_counts_cells_without_comparison() {
    let headline = |fault: Fault| {
        let dear = SimulatedServer::costing(9_000.0).with_fault(fault);
        let config = config(&["dear"], echo_cells(&[128], &[1, 50]), 1);
        let result = simulate(&config, Noise::USUAL, &[("dear", dear)]);
        texts(&result, FindingKind::Headline)[0].to_owned()
    };
    let no_server = "No server beats bare epoll on CPU in 2 cells";
    assert_eq!(headline(Fault::None), format!("{no_server} (both methods)."));
    assert_eq!(headline(Fault::DiesAbove(50)), format!("{no_server}, 1 not compared (both methods)."));
    assert_eq!(
        headline(Fault::CannotStart("no".to_owned())),
        "No other server could be compared with bare epoll (both methods)."
    );
}

#[test]
fn headline_compares_cheapest_with_runner_up() {
    let config = config(&["first", "second", "third"], echo_cells(&[128], &[20, 50]), 3);
    let costing = SimulatedServer::costing;
    let clear = [("first", costing(4_000.0)), ("second", costing(5_000.0)), ("third", costing(7_000.0))];
    let result = simulate(&config, Noise::USUAL, &clear);
    let runner_up = |result: &LabResult| {
        let contender = texts(result, FindingKind::Contender);
        assert_eq!(contender.len(), 1, "{contender:?}");
        contender[0].replace('\u{a0}', " ")
    };
    let text = texts(&result, FindingKind::Headline)[0];
    assert!(
        text.starts_with("first is cheapest: ") && text.ends_with(" in 2 of 2 cells (saturated)."),
        "{text}"
    );
    let second = runner_up(&result);
    assert!(
        second.starts_with("Runner-up second: first needs ") && second.ends_with(" % less CPU in 2 cells"),
        "{second}"
    );
    let level = [("first", costing(5_000.0)), ("second", costing(5_000.0)), ("third", costing(7_000.0))];
    let result = simulate(&config, Noise::USUAL, &level);
    let text = texts(&result, FindingKind::Headline)[0];
    assert!(text.contains(" is among the cheapest: "), "{text}");
    assert!(runner_up(&result).contains("no detectable difference in 2 cells"));
}
