//! Tests for false positives if the machine has slow and fast phases, servers are equal, there are too few pairs, or
//! time is stolen or throttled.

use anello_lab::result::{CellResult, FindingKind, Quality, Verdict};
use anello_lab::{Executable, echo_cells};

use super::{TWIN, claims, config, row, simulate, texts};
use crate::simulated::lab::run_count;
use crate::simulated::simulation::{Noise, SimulatedServer};

/// A machine with slow phases of about three seconds, in which requests take 1.6 times as long.
const PHASES: Noise = Noise { slow_factor: 1.6, ..Noise::USUAL };

#[test]
fn equal_servers_show_no_difference_in_95_percent_of_cells() {
    let sizes: Vec<usize> = (1..=run_count(20, 100)).collect();
    for (seed, noise) in [(1, Noise::USUAL), (2, PHASES)] {
        let mut config = config(&["one"], echo_cells(&sizes, &[50]), seed);
        config.timing.passes = 9;
        let result = simulate(&config, noise, &[("one", SimulatedServer::costing(6_000.0))]);
        let quiet = |cell: &&CellResult| claims(cell, "one") + claims(cell, TWIN) == 0;
        let quiet = result.cells.iter().filter(quiet).count();
        let cells = sizes.len();
        assert!(
            quiet * 100 >= cells * 95,
            "seed {seed}: nothing was claimed in only {quiet} of {cells} cells"
        );
        let rows = result.cells.iter().flat_map(|cell| &cell.rows);
        let noisy = rows.filter(|row| row.comparison.cpu_verdict == Verdict::TooNoisy).count();
        assert!(
            noisy * 100 <= 2 * cells * 30,
            "seed {seed}: {noisy} of {} verdicts are too noisy",
            2 * cells
        );
    }
}

/// Verifies the bound stated in the module documentation of `statistics::phases`.
#[test]
fn phases_neither_bias_ratios_nor_widen_intervals() {
    let others = ["dear", "equal"];
    let costing = |cpu_ns| SimulatedServer::costing(cpu_ns);
    let field = [("dear", costing(6_600.0)), ("equal", costing(6_000.0))];
    // Additional servers make a round take as long as in a real run.
    let additional: Vec<(&'static str, SimulatedServer)> =
        ["c1", "c2", "c3", "c4", "c5", "c6"].map(|name| (name, costing(7_000.0))).to_vec();
    let names: Vec<&str> = others.iter().copied().chain(additional.iter().map(|(name, _)| *name)).collect();
    let all: Vec<(&'static str, SimulatedServer)> = field.into_iter().chain(additional).collect();
    let (mut errors, mut half_widths, mut cells_with_phases, mut mixed) = ([0.0; 2], [0.0; 2], 0, 0);
    let seeds = 8;
    for seed in 0..seeds {
        for (which, noise) in [Noise::USUAL, PHASES].into_iter().enumerate() {
            let config = config(&names, echo_cells(&[128], &[50, 300]), seed);
            let result = simulate(&config, noise, &all);
            for cell in &result.cells {
                // (6600 × 0.75 + 51.2) / (6000 × 0.75 + 51.2)
                let truth = 5_001.2 / 4_551.2;
                let dear = row(cell, "dear").comparison.cpu_ratio.expect("a ratio");
                errors[which] += (dear.estimate / truth - 1.0).abs();
                half_widths[which] += (dear.high - dear.low) / 2.0;
                assert_eq!(claims(cell, "equal") + claims(cell, TWIN), 0, "seed {seed}, {}", cell.cell);
                if which == 1 {
                    cells_with_phases += usize::from(cell.phases.is_some());
                    mixed += cell.rows.iter().map(|row| row.mixed_phase_rounds).sum::<usize>();
                    if let Some(phases) = cell.phases {
                        assert!((1.4..1.8).contains(&phases.slow_factor), "seed {seed}: {phases:?}");
                    }
                }
            }
        }
    }
    let cells = f64::from(seeds as u32) * 2.0;
    let [steady, phased] = errors.map(|error| error / cells);
    assert!(
        phased < 0.012 && phased < 2.0 * steady.max(0.004),
        "error of the ratios: {phased} with phases, {steady} without"
    );
    let [steady, phased] = half_widths.map(|half_width| half_width / cells);
    assert!(phased < 1.5 * steady, "half width of the intervals: {phased} with phases, {steady} without");
    assert!(cells_with_phases > seeds as usize, "phases were detected in only {cells_with_phases} cells");
    assert!(mixed > 0, "rounds in which the phase changed are counted");
}

#[test]
fn phases_are_reported_in_finding() {
    let mut config = config(&["one"], echo_cells(&[128], &[50]), 4);
    (config.timing.passes, config.timing.rounds) = (8, 3);
    let result = simulate(&config, PHASES, &[("one", SimulatedServer::costing(6_000.0))]);
    assert!(
        result
            .findings
            .iter()
            .any(|finding| finding.text.starts_with("Slow and fast phases of the machine: in 1 of 1 cell: ")),
        "{result:?}"
    );
    assert!(result.slices.iter().any(|slice| slice.phase == Some(1)));
}

#[test]
fn throttled_slices_are_excluded_and_counted() {
    let result = simulate(
        &config(&[], echo_cells(&[128], &[50]), 1),
        Noise { throttled: 0.3, stolen: 0.0, ..Noise::USUAL },
        &[],
    );
    let throttled = result.slices.iter().filter(|slice| slice.quality == Quality::Throttled).count();
    let counted: usize = result.cells[0].rows.iter().map(|row| row.throttled_slices).sum();
    assert!(throttled > 3 && throttled == counted);
    assert!(result.slices.iter().all(|slice| (slice.throttled_ns == 0) == (slice.quality == Quality::Clean)));
    assert!(
        result
            .findings
            .iter()
            .any(|finding| finding.text.contains("a CPU limit throttled the lab or the server"))
    );
}

#[test]
fn missing_twin_gives_no_claims_and_caution() {
    let mut config = config(&["dear"], echo_cells(&[128], &[50]), 1);
    config.contenders.remove(1);
    let result = simulate(&config, Noise::USUAL, &[("dear", SimulatedServer::costing(12_000.0))]);
    assert_eq!(row(&result.cells[0], "dear").comparison.cpu_verdict, Verdict::TooNoisy);
    let cautions = texts(&result, FindingKind::Caution).join("\n");
    assert!(cautions.contains("Noise floor unknown: 1 of 1 cell: no difference is claimed, because bare epoll and its second instance have fewer than 5 pairs of slices or fewer than 3 passes"), "{cautions}");
}

#[test]
fn single_pair_gives_no_verdict() {
    let config = config(&["dear"], echo_cells(&[128], &[50]), 1);
    let mut result = simulate(&config, Noise::NONE, &[("dear", SimulatedServer::costing(12_000.0))]);
    assert_eq!(row(&result.cells[0], "dear").comparison.cpu_verdict, Verdict::More);
    // The reference has clean slices in passes 0 to 4, the contender in passes 4 to 8. Only pass 4 provides a pair.
    for slice in &mut result.slices {
        let invalid = (slice.contender == 0 && slice.pass > 4) || (slice.contender == 2 && slice.pass < 4);
        if invalid {
            slice.quality = Quality::Invalid;
        }
    }
    anello_lab::analysis::analyse(&mut result);
    let row = row(&result.cells[0], "dear");
    assert_eq!((row.clean_slices, row.comparison.cpu_ratio.unwrap().pairs), (5, 1));
    assert_eq!(
        (row.comparison.cpu_verdict, row.comparison.rate_verdict),
        (Verdict::TooNoisy, Verdict::TooNoisy)
    );
}

#[test]
fn copies_of_reference_report_false_positive_rate() {
    let names = ["copy a", "copy b"];
    let mut config = config(&names, echo_cells(&[128, 256], &[1, 20, 50]), 5);
    let arguments = config.contenders[0].arguments.clone();
    config.contenders.iter_mut().for_each(|contender| contender.arguments.clone_from(&arguments));
    let field = names.map(|name| (name, SimulatedServer::costing(6_000.0)));
    let result = simulate(&config, Noise::USUAL, &field);
    let first = texts(&result, FindingKind::Headline)[0];
    assert_eq!(
        first,
        "2 equal copies of bare epoll: no difference claimed in 6 of 6 cells, 0 too noisy (both methods)."
    );
}

#[test]
fn different_build_with_same_command_is_not_a_copy() {
    let mut config = config(&["new build"], echo_cells(&[128], &[1, 50]), 5);
    config.contenders[2].arguments = config.contenders[0].arguments.clone();
    let field = [("new build", SimulatedServer::costing(5_000.0))];
    let mut result = simulate(&config, Noise::USUAL, &field);
    for (record, letter) in result.contenders.iter_mut().zip(["a", "a", "b"]) {
        record.executables = vec![Executable { file: "server".to_owned(), sha256: letter.repeat(64) }];
    }
    anello_lab::analysis::analyse(&mut result);
    assert!(
        result.findings.iter().all(|finding| !finding.text.contains("equal copy")),
        "{:?}",
        result.findings
    );
    result.contenders[2].executables = result.contenders[0].executables.clone();
    anello_lab::analysis::analyse(&mut result);
    assert!(texts(&result, FindingKind::Headline)[0].starts_with("1 equal copy of bare epoll: "));
}
