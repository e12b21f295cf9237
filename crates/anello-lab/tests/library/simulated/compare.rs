//! Tests for comparing two simulated runs. The changes are known, and the verdicts must match them.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anello_lab::compare::{
    ChangeVerdict, Comparison, Counted, compare_counting, ratio_of_medians, render_comparison,
};
use anello_lab::measure::Measure;
use anello_lab::result::{ContenderRecord, Quality};
use anello_lab::schedule::Random;
use anello_lab::{Contender, CoreLayout, Executable, LabConfig, LabResult, Role, Timing, echo_cells};

use crate::simulated::lab::{compare, run, run_count};
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

const REFERENCE: &str = "bare epoll";
const REFERENCE_NS: f64 = 6_000.0;

/// Returns a simulated run with the reference, its twin and `servers`.
fn simulate(seed: u64, servers: &[(&'static str, SimulatedServer)]) -> LabResult {
    let contender = |name: &str| Contender::new(name, Path::new("server"), &[]);
    let mut contenders = vec![contender(REFERENCE), contender(REFERENCE).twin()];
    contenders.extend(servers.iter().map(|(name, _)| contender(name)));
    let quick = LabConfig::preset("quick", PathBuf::from("server")).unwrap();
    let config = LabConfig {
        contenders,
        cells: echo_cells(&[128], &[1, 50]),
        timing: Timing {
            slice: Duration::from_millis(50),
            passes: 11,
            rounds: 4,
            seed,
            ..quick.timing.clone()
        },
        cores: CoreLayout::new(vec![0], vec![1]),
        ..quick
    };
    let mut all = vec![
        (REFERENCE, SimulatedServer::costing(REFERENCE_NS)),
        ("bare epoll again", SimulatedServer::costing(REFERENCE_NS)),
    ];
    all.extend_from_slice(servers);
    let simulation = Simulation::new(seed, Noise::USUAL, &all);
    let stop = AtomicBool::new(false);
    run(&config, &mut simulation.load(), &mut simulation.machine(), &mut |_| {}, &stop).unwrap()
}

/// Returns a run with randomly generated slices, which is much faster than simulating every request. The server "one"
/// uses `cost_ns` of CPU time per request. The costs include noise in each slice, a random factor for each process, and
/// a drift common to all servers.
fn drawn(seed: u64, cost_ns: f64) -> LabResult {
    static TEMPLATE: LazyLock<LabResult> = LazyLock::new(|| simulate(1, &one(6_000.0)));
    let mut result = TEMPLATE.clone();
    let mut random = Random::new(seed);
    let mut normal = |spread: f64| {
        let sum: f64 = (0..12).map(|_| random.unit()).sum();
        1.0 + spread * (sum - 6.0)
    };
    let process_factors: Vec<f64> = (0..3 * result.plan.passes).map(|_| normal(0.004)).collect();
    let mut drift = 1.0;
    for slice in &mut result.slices {
        drift = (drift * normal(0.01)).clamp(0.8, 1.25);
        let cost_ns = if slice.contender == 2 { cost_ns } else { REFERENCE_NS };
        let process_factor = process_factors[slice.contender * result.plan.passes + slice.pass];
        let cost_ns = cost_ns * drift * normal(0.015) * process_factor;
        slice.requests = (slice.elapsed_ns as f64 / cost_ns) as u64;
        slice.cpu_ns = (slice.requests as f64 * cost_ns) as u64;
        (slice.quality, slice.phase) = (Quality::Clean, None);
    }
    result
}

fn one(cost_ns: f64) -> [(&'static str, SimulatedServer); 1] {
    [("one", SimulatedServer::costing(cost_ns))]
}

fn verdicts(comparison: &Comparison, measure: Measure) -> Vec<ChangeVerdict> {
    let changes = comparison.changes.iter();
    changes
        .filter(|change| change.contender == "one" && change.measure == Some(measure))
        .map(|change| change.verdict)
        .collect()
}

#[test]
fn change_has_more_degrees_of_freedom_than_each_run() {
    let run = drawn(1, 6_600.0);
    let comparison = compare(&run, &run, 0.05);
    let change = comparison.changes.iter().find_map(|change| change.change).unwrap();
    let ratio = run.cells[0].rows[2].comparison.cpu_ratio.unwrap();
    assert_eq!((change.passes, ratio.passes), (11, 11));
    assert!(change.stretch < ratio.stretch, "{change:?} {ratio:?}");
}

#[test]
fn equal_runs_show_no_change_in_95_percent_of_comparisons() {
    let runs = run_count(5, 20);
    let quiet = (0..runs as u64)
        .filter(|seed| {
            let (before, after) = (drawn(*seed, 6_600.0), drawn(1000 + seed, 6_600.0));
            let comparison = compare(&before, &after, 0.05);
            assert_eq!(comparison.regressions, 0, "seed {seed}");
            assert_eq!(comparison.obstacles, Vec::<String>::new());
            let mut all = verdicts(&comparison, Measure::Cpu);
            all.extend(verdicts(&comparison, Measure::Rate));
            assert_eq!(all.len(), 4);
            all.iter().all(|&verdict| verdict == ChangeVerdict::NoDifference)
        })
        .count();
    assert!(quiet * 100 >= runs * 95, "only {quiet} of {runs} pairs of equal runs claimed nothing");
}

#[test]
fn five_percent_change_is_detected_in_90_percent_of_comparisons() {
    let (runs, mut detected, mut total) = (run_count(4, 12), 0, 0);
    for seed in 0..runs as u64 {
        let (cheap, dear) = (drawn(seed, 6_000.0), drawn(1000 + seed, 6_300.0));
        let (worse, better) = (compare(&cheap, &dear, 0.0), compare(&dear, &cheap, 0.0));
        for (comparison, expected) in [(&worse, ChangeVerdict::Worse), (&better, ChangeVerdict::Better)] {
            let verdicts = verdicts(comparison, Measure::Cpu);
            total += verdicts.len();
            detected += verdicts.iter().filter(|&&verdict| verdict == expected).count();
        }
        assert_eq!(better.regressions, 0, "seed {seed}: an improvement is not a regression");
        assert_eq!(compare(&cheap, &dear, 0.10).regressions, 0, "seed {seed}: below the threshold");
    }
    assert_eq!(total, 4 * runs);
    assert!(detected * 100 >= total * 89, "only {detected} of {total} changes were detected");
}

#[test]
fn large_regression_exceeds_threshold_and_is_reported() {
    let comparison = compare(&simulate(1, &one(6_000.0)), &simulate(2, &one(7_800.0)), 0.05);
    assert!(comparison.regressions >= 2, "{}", render_comparison(&comparison));
    let text = render_comparison(&comparison);
    assert!(text.contains("significant regressions above 5.0 %"), "{text}");
    assert!(text.contains("WORSE") && text.contains("50 connections, 128 bytes"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 108), "{text}");
}

#[test]
fn slower_machine_changes_absolute_figures_only() {
    let before = simulate(1, &one(6_600.0));
    let mut after = simulate(2, &one(6_600.0));
    for slice in &mut after.slices {
        slice.elapsed_ns = slice.elapsed_ns * 16 / 10;
        slice.cpu_ns = slice.cpu_ns * 16 / 10;
    }
    let comparison = compare(&before, &after, 0.05);
    assert_eq!(comparison.regressions, 0);
    for change in comparison.changes.iter().filter(|change| change.measure == Some(Measure::Cpu)) {
        assert!(change.absolute.unwrap().estimate > 1.5, "{change:?}");
        assert!(
            matches!(change.verdict, ChangeVerdict::NoDifference | ChangeVerdict::Reference),
            "{change:?}"
        );
    }
}

#[test]
fn different_kernel_prevents_comparison_different_seed_does_not() {
    let before = simulate(1, &one(6_000.0));
    let mut after = simulate(2, &one(12_000.0));
    after.environment.kernel = "Linux 9.9".to_owned();
    let comparison = compare(&before, &after, 0.05);
    assert_eq!(
        (comparison.obstacles.as_slice(), comparison.regressions),
        (&["different kernel".to_owned()][..], 0)
    );
    assert!(
        verdicts(&comparison, Measure::Cpu).iter().all(|&verdict| verdict == ChangeVerdict::NotComparable)
    );
    let text = render_comparison(&comparison);
    assert!(text.contains("Linux 9.9") && text.contains("cannot be compared: different kernel"), "{text}");
    assert!(!text.contains("seed"));
}

#[test]
fn regression_of_peer_is_reported_but_not_counted() {
    let field = |anello_ns, peer_ns| {
        [("anello epoll", SimulatedServer::costing(anello_ns)), ("peer", SimulatedServer::costing(peer_ns))]
    };
    let run = |seed, anello_ns, peer_ns| {
        let mut result = simulate(seed, &field(anello_ns, peer_ns));
        result.contenders[2].role = Role::Anello;
        result
    };
    let (good, worse_peer) = (run(1, 6_000.0, 6_000.0), run(2, 6_000.0, 9_000.0));
    let comparison = compare(&good, &worse_peer, 0.05);
    assert_eq!(
        (comparison.regressions, comparison.counted.as_slice()),
        (0, &["anello epoll".to_owned()][..])
    );
    assert!(comparison.regressions_of_others >= 2, "{}", render_comparison(&comparison));
    let text = render_comparison(&comparison);
    assert!(text.contains("No significant regression of anello epoll above 5.0 %."), "{text}");
    assert!(text.contains("regressions of peer, because a contender or the machine changed"), "{text}");
    assert!(text.contains("worse") && !text.contains("WORSE"), "{text}");
    for counted in [Counted::All, Counted::Named("peer".to_owned())] {
        let all = compare_counting(&good, &worse_peer, 0.05, &[counted]);
        assert_eq!((all.regressions, all.regressions_of_others), (comparison.regressions_of_others, 0));
    }
    let worse_anello = compare(&good, &run(2, 9_000.0, 6_000.0), 0.05);
    assert!(worse_anello.regressions >= 2 && worse_anello.regressions_of_others == 0);
    assert!(render_comparison(&worse_anello).contains("WORSE"));
    // The failure of a peer is not a regression in anello.
    let mut broken = field(6_000.0, 6_000.0);
    broken[1].1.fault = Fault::DiesAbove(50);
    let mut broken = simulate(2, &broken);
    broken.contenders[2].role = Role::Anello;
    let broken = compare(&good, &broken, 0.05);
    assert_eq!((broken.regressions, broken.regressions_of_others), (0, 1));
    let names = [Counted::Anello, Counted::Named("unknown".to_owned())];
    assert_eq!(Counted::unknown(&names, &good, &worse_peer), ["unknown"]);
}

#[test]
fn anello_reference_requires_same_build() {
    let program = |letter: &str| vec![Executable { file: "anello".to_owned(), sha256: letter.repeat(64) }];
    let run = |seed| {
        let mut result = simulate(seed, &one(6_000.0));
        for contender in &mut result.contenders {
            (contender.role, contender.executables) = (Role::Anello, program("a"));
        }
        result
    };
    // In the second run, the reference and its twin cost half as much, so all others seem to cost twice as much.
    let (before, mut after) = (run(1), run(2));
    for slice in after.slices.iter_mut().filter(|slice| slice.contender < 2) {
        (slice.elapsed_ns, slice.cpu_ns) = (slice.elapsed_ns / 2, slice.cpu_ns / 2);
    }
    after.contenders.iter_mut().for_each(|contender| contender.executables = program("b"));
    for (one, other) in [(&before, &after), (&after, &before)] {
        let comparison = compare(one, other, 0.05);
        assert_eq!((comparison.regressions, comparison.obstacles.len()), (0, 1));
        let text = render_comparison(&comparison);
        assert!(text.contains("cannot be compared: the reference bare epoll is part of anello"), "{text}");
        assert!(!text.contains("No significant regression"), "{text}");
    }
    let comparison = compare(&before, &run(3), 0.05);
    assert_eq!((comparison.regressions, comparison.obstacles.len()), (0, 0), "the same build");
    let text = render_comparison(&comparison);
    assert!(
        text.contains("bare epoll: is the reference; only a failure can be detected, not a change"),
        "{text}"
    );
    let peer = |mut result: LabResult| {
        result.contenders.push(ContenderRecord { name: "peer".to_owned(), ..result.contenders[2].clone() });
        result.contenders[3].role = Role::Peer;
        result
    };
    let text = render_comparison(&compare(&peer(before), &peer(run(3)), 0.05));
    assert!(text.contains("No significant regression of one above 5.0 %."), "not of the reference: {text}");
}

#[test]
fn changed_programs_commits_and_versions_are_shown_once() {
    let before = simulate(1, &one(6_000.0));
    let mut before = LabResult { slices: Vec::new(), ..before };
    let mut after = before.clone();
    let program = |letter: &str| Executable { file: "anello".to_owned(), sha256: letter.repeat(64) };
    for (result, letter, version) in [(&mut before, "a", "0.1.0"), (&mut after, "b", "0.2.0")] {
        for contender in &mut result.contenders {
            contender.executables = vec![program(letter)];
        }
        result.contenders[2].version = Some(version.to_owned());
        result.contenders[2].commit = Some(format!("{}-dirty", letter.repeat(40)));
        result.contenders[2].server_commit = Some(format!("{}+changes", letter.repeat(12)));
        result.contenders[2].library_checksum = Some(format!("h1:{letter}="));
        result.contenders[2].built_with = Some(format!("Rust (rustc {version})"));
    }
    let comparison = compare(&before, &after, 0.05);
    let shown: Vec<(&str, &str, &str)> = comparison
        .differences
        .iter()
        .map(|one| (one.what.as_str(), one.before.as_str(), one.after.as_str()))
        .collect();
    let expected = [
        ("version of one", "0.1.0", "0.2.0"),
        ("commit of one", "aaaaaaaaaaaa+changes", "bbbbbbbbbbbb+changes"),
        ("server's commit of one", "aaaaaaaaaaaa+changes", "bbbbbbbbbbbb+changes"),
        ("library's checksum of one", "h1:a=", "h1:b="),
        ("build of one", "Rust (rustc 0.1.0)", "Rust (rustc 0.2.0)"),
        ("program of bare epoll and 1 more", "aaaaaaaaaaaa anello", "bbbbbbbbbbbb anello"),
    ];
    assert_eq!(shown, expected, "the twin is not listed separately");
    let text = render_comparison(&comparison);
    assert!(
        expected.iter().all(|(what, one, other)| [what, one, other].iter().all(|word| text.contains(**word)))
    );
    assert!(text.lines().all(|line| line.chars().count() <= 108), "{text}");
}

#[test]
fn vulnerabilities_unknown_to_old_run_are_not_a_difference() {
    let mut before = LabResult { slices: Vec::new(), ..simulate(1, &one(6_000.0)) };
    let mut after = before.clone();
    let whats = |before: &LabResult, after: &LabResult| -> Vec<String> {
        compare(before, after, 0.05).differences.into_iter().map(|one| one.what).collect()
    };
    before.environment.vulnerable = None;
    after.environment.vulnerable = Some(vec!["mds: SMT vulnerable".to_owned()]);
    assert_eq!(whats(&before, &after), Vec::<String>::new());
    assert_eq!(whats(&after, &before), Vec::<String>::new());
    after.environment.mitigations = vec!["mds: Clear CPU buffers".to_owned()];
    assert_eq!(whats(&before, &after), ["CPU mitigations"], "that was known before");
    before.environment.vulnerable = Some(Vec::new());
    assert_eq!(whats(&before, &after), ["CPU mitigations", "Unmitigated CPU vulnerabilities"]);
}

#[test]
fn plan_differences_are_reported_and_load_driver_change_prevents_comparison() {
    let mut before = LabResult { slices: Vec::new(), ..simulate(1, &one(6_000.0)) };
    before.plan.load_driver = Some("epoll".to_owned());
    before.contenders[2].command = "server --with many words that are the same --driver epoll".to_owned();
    before.contenders[2].commit = Some("a".repeat(40) + "-dirty");
    let mut after = before.clone();
    after.contenders[2].commit = Some("a".repeat(12) + "+changes");
    assert_eq!(compare(&before, &after, 0.05).differences, [], "same commit in another notation");
    after.plan.slice_ns += 300_000;
    (after.plan.warm_up_ns, after.plan.checked) = (500_000, !before.plan.checked);
    after.contenders[2].command = "server --with many words that are the same --driver io_uring".to_owned();
    let comparison = compare(&before, &after, 0.05);
    let whats: Vec<&str> = comparison.differences.iter().map(|one| one.what.as_str()).collect();
    assert_eq!(whats, ["slice", "warm-up", "contenders checked before the run", "command of one"]);
    assert_eq!((comparison.differences[0].after.as_str(), comparison.obstacles.len()), ("50.3 ms", 0));
    let text = render_comparison(&comparison);
    assert!(
        !text.contains("No differences between") && text.contains("… epoll") && text.contains("… io_uring"),
        "{text}"
    );
    after.plan.load_driver = Some("io_uring".to_owned());
    let comparison = compare(&before, &after, 0.05);
    assert!(comparison.differences.iter().any(|one| one.what == "driver of the load generator"));
    assert_eq!(comparison.obstacles, ["different load generator driver"]);
    after.plan.load_driver = None;
    assert!(compare(&before, &after, 0.05).obstacles.is_empty(), "an unknown driver is assumed to match");
    (before.plan.server_share, after.plan.server_share) = (0.5, 1.0);
    let comparison = compare(&before, &after, 0.05);
    assert_eq!(comparison.obstacles, ["different CPU share for the servers"]);
    assert!(
        comparison
            .differences
            .iter()
            .any(|one| (one.before.as_str(), one.after.as_str()) == ("50 %", "100 %"))
    );
}

#[test]
fn generated_disk_file_name_is_not_a_difference() {
    let mut before = LabResult { slices: Vec::new(), ..simulate(1, &one(6_000.0)) };
    let mut after = before.clone();
    for (result, process) in [(&mut before, 17), (&mut after, 18)] {
        let name = format!("anello-lab-{process}.disk");
        result.contenders[2].command = format!("anello bare disk --file {name} --engine pread");
        result.plan.disk_file = Some(format!("/var/tmp/{name}"));
    }
    assert_eq!(compare(&before, &after, 0.05).differences, []);
}

#[test]
fn failed_contender_is_regression_missing_contender_is_not() {
    let healthy = simulate(1, &one(6_000.0));
    let broken = simulate(2, &[("one", SimulatedServer::costing(6_000.0).with_fault(Fault::DiesAbove(50)))]);
    let comparison = compare(&healthy, &broken, 0.05);
    assert_eq!(comparison.regressions, 1);
    assert!(
        render_comparison(&comparison).contains("one at 50 connections, 128 bytes: failed in B: was killed")
    );
    let fixed = compare(&broken, &healthy, 0.05);
    assert_eq!(fixed.regressions, 0);
    assert!(fixed.changes.iter().any(|change| change.verdict == ChangeVerdict::Fixed));
    let alone = simulate(3, &[]);
    let gone = compare(&healthy, &alone, 0.05);
    assert_eq!(gone.regressions, 0);
    assert!(render_comparison(&gone).contains("Not comparable (2): not a contender of the second run\n"));
    let new = compare(&alone, &healthy, 0.05);
    assert!(render_comparison(&new).contains("not a contender of the first run"));
}

#[test]
fn comparison_json_round_trip() {
    let comparison = compare(&simulate(1, &one(6_000.0)), &simulate(2, &one(6_600.0)), 0.05);
    let text = serde_json::to_string(&comparison).unwrap();
    let back: Comparison = serde_json::from_str(&text).unwrap();
    assert_eq!((back.schema.as_str(), back.changes.len()), ("anello-lab-compare", comparison.changes.len()));
}

#[test]
fn ratio_of_constant_values_has_zero_width_interval() {
    let (one, other) = (vec![vec![2.0; 3], vec![]], vec![vec![3.0], vec![3.0; 4]]);
    let ratio = ratio_of_medians(&one, &other, &mut Random::new(1)).unwrap();
    assert_eq!((ratio.low, ratio.estimate, ratio.high), (1.5, 1.5, 1.5));
    assert_eq!((ratio.pairs, ratio.passes), (3, 1), "those of the run with fewer");
    assert_eq!(ratio_of_medians(&one, &[vec![]], &mut Random::new(1)), None);
    assert_eq!(ratio_of_medians(&[], &other, &mut Random::new(1)), None);
}

#[test]
fn resampled_medians_are_within_value_range() {
    let before = vec![vec![1.0; 2]; 8];
    let after: Vec<Vec<f64>> =
        (0..8).map(|pass| if pass % 2 == 0 { vec![1.0, 2.0] } else { vec![4.0] }).collect();
    for seed in 0..5 {
        let ratio = ratio_of_medians(&before, &after, &mut Random::new(seed)).unwrap();
        // Undo the widening of the interval for small samples.
        let resampled = |bound: f64| ratio.estimate * (bound / ratio.estimate).powf(1.0 / ratio.stretch);
        assert!(resampled(ratio.low) > 0.999 && resampled(ratio.high) < 4.001, "{ratio:?}");
    }
}
