//! Comparisons between contenders and their bases. The simulated ratios are known, and the verdicts must match them,
//! regardless of the ratio to the reference.

use std::sync::atomic::AtomicBool;

use anello_lab::measure::Measure;
use anello_lab::pairs::CleanSlices;
use anello_lab::result::{PairComparison, Verdict};
use anello_lab::{Cell, LabConfig, LabError, LabResult, Workload, echo_cells, run_from};

use super::{CheckpointRecorder, REFERENCE, TWIN, config, row, servers, simulate, simulate_on};
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

/// Returns a configuration in which each contender of `field` has the given base.
fn config_of(field: &[(&str, Option<&str>)], cells: Vec<Cell>, seed: u64) -> LabConfig {
    let names: Vec<&str> = field.iter().map(|(name, _)| *name).collect();
    let mut config = config(&names, cells, seed);
    for (contender, (_, base)) in config.contenders[2..].iter_mut().zip(field) {
        contender.base = base.map(str::to_owned);
    }
    config
}

fn base_comparison<'a>(result: &'a LabResult, name: &str, connections: usize) -> &'a PairComparison {
    let here = |versus: &&PairComparison| versus.contender == name && versus.cell.connections == connections;
    result.base_comparisons.iter().find(here).unwrap_or_else(|| panic!("{name} at {connections} connections"))
}

/// Returns the simulated CPU time of one request, in nanoseconds.
fn cost_ns(cpu_ns: f64, connections: usize) -> f64 {
    cpu_ns * if connections == 1 { 1.0 } else { 0.75 } + 128.0 * 0.4
}

#[test]
fn option_is_compared_with_base_not_reference() {
    let costing = SimulatedServer::costing;
    // Both costs differ widely from the reference's 6,000 ns. "option" costs 10 % less than its base.
    let field = [("dear", costing(12_000.0)), ("option", costing(10_800.0)), ("nothing", costing(12_000.0))];
    let bases = [("dear", Some(REFERENCE)), ("option", Some("dear")), ("nothing", Some("dear"))];
    let config = config_of(&bases, echo_cells(&[128], &[1, 50]), 1);
    let exact = simulate(&config, Noise::NONE, &field);
    assert_eq!(exact.base_comparisons.len(), 3 * 2, "{:?}", exact.base_comparisons);
    let slices = CleanSlices::of(&exact);
    for (cell, connections) in [(0, 1), (1, 50)] {
        let option = base_comparison(&exact, "option", connections);
        let ratio = option.comparison.cpu_ratio.unwrap();
        let expected = cost_ns(10_800.0, connections) / cost_ns(12_000.0, connections);
        assert!((ratio.estimate - expected).abs() < 0.001, "{ratio:?} is not {expected}");
        assert_eq!(option.peer, "dear");
        let pair = slices.ratio(cell, 3, 2, Measure::Cpu).unwrap();
        assert_eq!(
            (pair.estimate, pair.pairs),
            (ratio.estimate, ratio.pairs),
            "equal to the general pair ratio"
        );
        assert_eq!(
            (option.comparison.cpu_verdict, option.comparison.rate_verdict),
            (Verdict::Less, Verdict::More)
        );
        assert_eq!(
            row(&exact.cells[cell], "option").comparison.cpu_verdict,
            Verdict::More,
            "against the reference"
        );
        let nothing = base_comparison(&exact, "nothing", connections);
        assert_eq!(
            (nothing.comparison.cpu_ratio.unwrap().estimate, nothing.comparison.cpu_verdict),
            (1.0, Verdict::NoDifference)
        );
        assert_eq!(base_comparison(&exact, "dear", connections).comparison.cpu_verdict, Verdict::More);
    }
}

#[test]
fn ten_percent_between_option_and_base_is_detected_despite_noise() {
    let costing = SimulatedServer::costing;
    let field = [("dear", costing(12_000.0)), ("option", costing(10_800.0)), ("nothing", costing(12_000.0))];
    let bases = [("dear", None), ("option", Some("dear")), ("nothing", Some("dear"))];
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..20 {
        let config = config_of(&bases, echo_cells(&[128], &[1, 50]), seed);
        let result = simulate(&config, Noise::USUAL, &field);
        let verdicts = |name: &str| {
            [1, 50].map(|connections| base_comparison(&result, name, connections).comparison.cpu_verdict)
        };
        right += usize::from(verdicts("option") == [Verdict::Less; 2]);
        let claims = |verdict: &Verdict| matches!(verdict, Verdict::More | Verdict::Less);
        wrong += usize::from(verdicts("nothing").iter().any(claims));
    }
    assert!(right >= 19, "only {right} of 20 runs detected the difference in both cells");
    assert!(wrong <= 1, "{wrong} of 20 runs claimed a difference where there is none");
}

#[test]
fn comparison_with_reference_as_base_equals_row() {
    let field = [("option", SimulatedServer::costing(6_300.0))];
    let rated = Cell { offered_per_second: Some(20_000), ..Cell::echo(128, 50) };
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 20) };
    for cells in [echo_cells(&[128], &[1, 50]), vec![rated], vec![idle]] {
        let config = config_of(&[("option", Some(REFERENCE))], cells.clone(), 3);
        let result = simulate(&config, Noise::USUAL, &field);
        assert_eq!(result.base_comparisons.len(), cells.len());
        for (versus, cell) in result.base_comparisons.iter().zip(&result.cells) {
            let row = row(cell, "option");
            assert_eq!((&versus.cell, &versus.peer), (&cell.cell, &REFERENCE.to_owned()));
            assert_eq!(versus.mixed_phase_rounds, row.mixed_phase_rounds);
            for (ratio, of_row) in [
                (versus.comparison.rate_ratio, row.comparison.rate_ratio),
                (versus.comparison.cpu_ratio, row.comparison.cpu_ratio),
                (versus.comparison.p99_ratio, row.comparison.p99_ratio),
                (versus.comparison.memory_ratio, row.comparison.memory_ratio),
            ] {
                assert_eq!(ratio, of_row, "{}", cell.cell);
            }
            assert_eq!(
                [
                    versus.comparison.rate_verdict,
                    versus.comparison.cpu_verdict,
                    versus.comparison.p99_verdict,
                    versus.comparison.memory_verdict
                ],
                [
                    row.comparison.rate_verdict,
                    row.comparison.cpu_verdict,
                    row.comparison.p99_verdict,
                    row.comparison.memory_verdict
                ],
                "{}",
                cell.cell
            );
            assert!(versus.comparison.cpu_ratio.is_some() || versus.comparison.memory_ratio.is_some());
        }
    }
}

#[test]
fn base_comparison_requires_both_contenders_and_twin() {
    let small = SimulatedServer::costing(9_000.0).with_fault(Fault::DiesAbove(50));
    let field = [("small", small), ("option", SimulatedServer::costing(6_000.0))];
    let config = config_of(&[("small", None), ("option", Some("small"))], echo_cells(&[128], &[1, 50]), 2);
    let mut result = simulate(&config, Noise::USUAL, &field);
    let cells: Vec<usize> = result.base_comparisons.iter().map(|versus| versus.cell.connections).collect();
    assert_eq!(cells, [1]);
    assert_eq!(base_comparison(&result, "option", 1).comparison.cpu_verdict, Verdict::Less);
    let twin = result.contenders.iter().position(|contender| contender.name == TWIN).unwrap();
    result.slices.retain(|slice| slice.contender != twin);
    anello_lab::analysis::analyse(&mut result);
    assert_eq!(
        base_comparison(&result, "option", 1).comparison.cpu_verdict,
        Verdict::TooNoisy,
        "the noise floor is unknown"
    );
}

#[test]
fn offered_rates_are_compared_by_cpu_and_latency() {
    let rated = Cell { offered_per_second: Some(20_000), ..Cell::echo(128, 50) };
    let field = [("dear", SimulatedServer::costing(18_000.0)), ("option", SimulatedServer::costing(9_000.0))];
    let config = config_of(&[("dear", None), ("option", Some("dear"))], vec![rated], 1);
    let result = simulate(&config, Noise::NONE, &field);
    let option = base_comparison(&result, "option", 50);
    assert_eq!(
        (option.comparison.cpu_verdict, option.comparison.p99_verdict),
        (Verdict::Less, Verdict::Less),
        "{option:?}"
    );
    assert_eq!(
        (option.comparison.rate_ratio, option.comparison.rate_verdict),
        (None, Verdict::NotComparable)
    );
}

#[test]
fn unknown_base_or_own_name_as_base_is_rejected() {
    let of = |base: &str| {
        let config = config_of(&[("one", Some(base))], echo_cells(&[128], &[1]), 1);
        let simulation = Simulation::new(1, Noise::NONE, &servers(&[("one", SimulatedServer::costing(1.0))]));
        match simulate_on(&simulation, &config, None) {
            Err(LabError::Config(why)) => why,
            other => panic!("not rejected: {other:?}"),
        }
    };
    for (base, why) in [
        ("one", "the base of \"one\" is \"one\", which is the contender itself"),
        ("two", "is \"two\", which is not among the contenders (use the contender that differs only"),
        (TWIN, "which is not among the contenders"),
    ] {
        assert!(of(base).to_string().contains(why), "{}", of(base));
    }
}

#[test]
fn result_without_base_fields_is_parsed() {
    let field = [("option", SimulatedServer::costing(9_000.0))];
    let config = config_of(&[("option", Some(REFERENCE))], echo_cells(&[128], &[1]), 1);
    let result = simulate(&config, Noise::USUAL, &field);
    let json = anello_lab::render_json(&result).unwrap();
    assert_eq!(LabResult::from_json(&json).as_ref(), Ok(&result));
    let mut value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["contenders"][2]["base"], REFERENCE);
    assert!(value.as_object_mut().unwrap().remove("base_comparisons").is_some());
    for contender in value["contenders"].as_array_mut().unwrap() {
        assert!(contender.as_object_mut().unwrap().remove("base").is_some());
    }
    let old = LabResult::from_json(&value.to_string()).unwrap();
    assert_eq!((old.base_comparisons.len(), &old.contenders[2].base), (0, &None));
    assert_eq!(old.cells, result.cells);
    assert!(!anello_lab::render_html(&old).contains("which differs in one option"));
}

#[test]
fn resumed_run_uses_bases_of_current_scenario() {
    let cells = echo_cells(&[128], &[1, 50]);
    let field = servers(&[("one", SimulatedServer::costing(6_000.0))]);
    let simulation = Simulation::new(7, Noise::NONE, &field);
    let stop = AtomicBool::new(false);
    let mut recorder =
        CheckpointRecorder { stop_at_slice: Some((4, &stop)), ..CheckpointRecorder::default() };
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    let alone = config_of(&[("one", None)], cells.clone(), 7);
    let part = run_from(&alone, None, &mut load, &mut machine, &mut recorder, &stop).unwrap();
    assert!(part.interrupted && part.base_comparisons.is_empty());
    let config = config_of(&[("one", Some(REFERENCE))], cells, 7);
    let whole = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, Some(part)).unwrap();
    assert_eq!((whole.interrupted, whole.base_comparisons.len()), (false, 2));
    assert_eq!(whole.contenders[2].base.as_deref(), Some(REFERENCE));
}
