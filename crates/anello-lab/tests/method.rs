//! The method on a simulated machine: phases, checks, limits, rates, idle connections, runs that are taken up again, and
//! what is said about equal servers in a hundred cells.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anello_lab::peers::Kind;
use anello_lab::result::{CellResult, Consequence, FindingKind, LabResult, Outcome, Quality, Row, Verdict};
use anello_lab::simulation::{Fault, Noise, SimulatedServer, Simulation};
use anello_lab::{
    Cell, Contender, DiskOperation, LabConfig, LabError, Observer, Progress, Role, Workload, echo_cells,
    run_from,
};

const REFERENCE: &str = "bare epoll";
const TWIN: &str = "bare epoll again";

fn contender(name: &str) -> Contender {
    Contender::new(name, Path::new("server"), &["--name", name, "--cores", "{cores}"])
}

/// The reference, its twin and these others, in these cells.
fn config(others: &[&str], cells: Vec<Cell>, seed: u64) -> LabConfig {
    let mut contenders = vec![contender(REFERENCE), contender(REFERENCE).twin()];
    contenders.iter_mut().for_each(|contender| contender.role = Role::Bare);
    contenders.extend(others.iter().map(|name| contender(name)));
    LabConfig {
        contenders,
        cells,
        check: false,
        slice: Duration::from_millis(50),
        seed,
        server_cores: vec![0],
        load_cores: vec![1],
        ..LabConfig::quick(PathBuf::from("server"))
    }
}

fn servers(others: &[(&'static str, SimulatedServer)]) -> Vec<(&'static str, SimulatedServer)> {
    let reference = SimulatedServer::costing(6_000.0);
    let mut servers = vec![(REFERENCE, reference.clone()), (TWIN, reference)];
    servers.extend_from_slice(others);
    servers
}

/// Keeps the last checkpoint, and may stop the run after so many.
#[derive(Default)]
struct Keeper<'a> {
    checkpoints: Vec<LabResult>,
    stop_after: Option<(usize, &'a AtomicBool)>,
    stop_at_slice: Option<(usize, &'a AtomicBool)>,
}

impl Observer for Keeper<'_> {
    fn keeps_checkpoints(&self) -> bool {
        self.stop_after.is_some() || self.stop_at_slice.is_some()
    }

    fn progress(&mut self, progress: Progress) {
        if let (Progress::Slices { done }, Some((at, stop))) = (progress, self.stop_at_slice) {
            stop.store(done >= at, Ordering::Relaxed);
        }
    }

    fn checkpoint(&mut self, result: &LabResult) {
        self.checkpoints.push(result.clone());
        if let Some((after, stop)) = self.stop_after {
            stop.store(self.checkpoints.len() >= after, Ordering::Relaxed);
        }
    }
}

fn simulate_on(
    simulation: &Simulation,
    config: &LabConfig,
    previous: Option<LabResult>,
) -> Result<LabResult, LabError> {
    let stop = AtomicBool::new(false);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    run_from(config, previous, &mut load, &mut machine, &mut Keeper::default(), &stop)
}

fn simulate(config: &LabConfig, noise: Noise, others: &[(&'static str, SimulatedServer)]) -> LabResult {
    simulate_on(&Simulation::new(config.seed, noise, &servers(others)), config, None).unwrap()
}

fn row<'a>(cell: &'a CellResult, name: &str) -> &'a Row {
    cell.rows.iter().find(|row| row.contender == name).expect("the row exists")
}

fn claims(cell: &CellResult, name: &str) -> usize {
    let row = row(cell, name);
    let verdicts = [row.rate_verdict, row.cpu_verdict];
    verdicts.into_iter().filter(|verdict| matches!(verdict, Verdict::More | Verdict::Less)).count()
}

/// A steady machine that is slow by a factor of 1.6 for about three seconds at a time.
const PHASES: Noise = Noise { slow_factor: 1.6, ..Noise::USUAL };

#[test]
fn a_run_over_a_hundred_cells_of_equal_servers_claims_nothing_in_at_least_95() {
    let sizes: Vec<usize> = (1..=100).collect();
    for (seed, noise) in [(1, Noise::USUAL), (2, PHASES)] {
        let config = LabConfig { passes: 9, ..config(&["one"], echo_cells(&sizes, &[50]), seed) };
        let result = simulate(&config, noise, &[("one", SimulatedServer::costing(6_000.0))]);
        let quiet = |cell: &&CellResult| claims(cell, "one") + claims(cell, TWIN) == 0;
        let quiet = result.cells.iter().filter(quiet).count();
        assert!(quiet >= 95, "seed {seed}: nothing was claimed in only {quiet} of 100 cells");
        let unclear = result.cells.iter().flat_map(|cell| &cell.rows);
        let unclear = unclear.filter(|row| row.cpu_verdict == Verdict::TooNoisy).count();
        assert!(unclear <= 60, "seed {seed}: {unclear} of 200 verdicts were given up");
    }
}

/// The bound that the header of `statistics::phases` speaks of.
#[test]
fn phases_neither_bias_ratios_nor_widen_intervals() {
    let others = ["dear", "equal"];
    let costing = |cpu_ns| SimulatedServer::costing(cpu_ns);
    let field = [("dear", costing(6_600.0)), ("equal", costing(6_000.0))];
    // Eight more, so that a round takes as long as in earnest.
    let crowd: Vec<(&'static str, SimulatedServer)> =
        ["c1", "c2", "c3", "c4", "c5", "c6"].map(|name| (name, costing(7_000.0))).to_vec();
    let names: Vec<&str> = others.iter().copied().chain(crowd.iter().map(|(name, _)| *name)).collect();
    let all: Vec<(&'static str, SimulatedServer)> = field.into_iter().chain(crowd).collect();
    let (mut off, mut reach, mut seen, mut mixed) = ([0.0; 2], [0.0; 2], 0, 0);
    let seeds = 8;
    for seed in 0..seeds {
        for (which, noise) in [Noise::USUAL, PHASES].into_iter().enumerate() {
            let config = config(&names, echo_cells(&[128], &[50, 300]), seed);
            let result = simulate(&config, noise, &all);
            for cell in &result.cells {
                // (6600 × 0.75 + 51.2) / (6000 × 0.75 + 51.2)
                let truth = 5_001.2 / 4_551.2;
                let dear = row(cell, "dear").cpu_ratio.expect("a ratio");
                off[which] += (dear.estimate / truth - 1.0).abs();
                reach[which] += (dear.high - dear.low) / 2.0;
                assert_eq!(claims(cell, "equal") + claims(cell, TWIN), 0, "seed {seed}, {}", cell.cell);
                if which == 1 {
                    seen += usize::from(cell.phases.is_some());
                    mixed += cell.rows.iter().map(|row| row.mixed_phase_rounds).sum::<usize>();
                    if let Some(phases) = cell.phases {
                        assert!((1.4..1.8).contains(&phases.slow_factor), "seed {seed}: {phases:?}");
                    }
                }
            }
        }
    }
    let cells = f64::from(seeds as u32) * 2.0;
    let [steady, phased] = off.map(|off| off / cells);
    assert!(
        phased < 0.012 && phased < 2.0 * steady.max(0.004),
        "ratios are off by {phased}, steady {steady}"
    );
    let [steady, phased] = reach.map(|reach| reach / cells);
    assert!(phased < 1.5 * steady, "intervals reach {phased}, on a steady machine {steady}");
    assert!(seen > seeds as usize, "phases were seen in {seen} cells only");
    assert!(mixed > 0, "rounds in which the phase changed are counted");
}

#[test]
fn phases_are_told_in_a_sentence() {
    let config = LabConfig { passes: 8, rounds: 3, ..config(&["one"], echo_cells(&[128], &[50]), 4) };
    let result = simulate(&config, PHASES, &[("one", SimulatedServer::costing(6_000.0))]);
    assert!(
        result.findings.iter().any(|finding| finding.text.contains("slow and fast phases")),
        "{result:?}"
    );
    assert!(result.slices.iter().any(|slice| slice.phase == Some(1)));
}

#[test]
fn a_contender_that_fails_its_check_is_shown_and_not_timed() {
    let losing = SimulatedServer::costing(1_000.0).with_fault(Fault::LosesBytes);
    let config = LabConfig { check: true, ..config(&["loser"], echo_cells(&[128], &[1, 50]), 1) };
    let result = simulate(&config, Noise::USUAL, &[("loser", losing)]);
    for cell in &result.cells {
        let loser = row(cell, "loser");
        assert!(matches!(&loser.outcome, Outcome::CheckFailed(why) if why.contains("1048576")), "{loser:?}");
        assert_eq!((loser.figures.is_none(), loser.cpu_verdict), (true, Verdict::NotComparable));
        assert_eq!(row(cell, TWIN).outcome, Outcome::Measured);
    }
    assert!(result.slices.iter().all(|slice| slice.contender != 2));
    let failed: Vec<_> = result.checks.iter().filter(|check| !check.passed).collect();
    assert_eq!((failed.len(), failed[0].what.as_str()), (1, "stalled reader"));
    // Three for the reference, none for its twin, two for the loser.
    assert_eq!(result.checks.len(), 5);
    assert_eq!(result.failures[0].consequence, Consequence::NotTimed);
    let told = |finding: &anello_lab::result::Finding| finding.text.starts_with("loser failed its check");
    assert!(result.findings.iter().any(told), "{:?}", result.findings);
}

#[test]
fn a_reference_that_fails_its_check_takes_its_twin_with_it() {
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
fn cells_beyond_a_limit_are_shown_as_beyond_it() {
    let mut config = config(&["small", "single"], Vec::new(), 1);
    config.server_cores = vec![0, 1];
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
fn connections_that_do_not_fit_at_once_are_opened_for_each_slice() {
    let config = config(&[], echo_cells(&[128], &[10, 100]), 1);
    let simulation = Simulation::new(1, Noise::USUAL, &servers(&[])).with_connections_at_once(150);
    let result = simulate_on(&simulation, &config, None).unwrap();
    assert!(result.cells.iter().all(|cell| row(cell, TWIN).outcome == Outcome::Measured));
    assert_eq!((simulation.most_sessions(), simulation.sessions_left()), (2, 0), "2 in the small cell");
    let large = LabConfig { cells: echo_cells(&[128], &[100]), ..config };
    let simulation = Simulation::new(1, Noise::USUAL, &servers(&[])).with_connections_at_once(150);
    simulate_on(&simulation, &large, None).unwrap();
    assert_eq!(simulation.most_sessions(), 1, "one at a time in the large one");
}

#[test]
fn offered_rates_are_judged_by_latency_and_cpu_and_who_falls_behind_is_named() {
    let rated = |rate| Cell { offered_per_second: Some(rate), ..Cell::echo(128, 80) };
    let config = config(&["slow", "dear"], vec![rated(20_000), rated(100_000)], 1);
    let field = [("slow", SimulatedServer::costing(30_000.0)), ("dear", SimulatedServer::costing(9_000.0))];
    let result = simulate(&config, Noise::USUAL, &field);
    let dear = row(&result.cells[0], "dear");
    assert_eq!((dear.rate_ratio, dear.rate_verdict), (None, Verdict::NotComparable), "the rate is given");
    assert_eq!(dear.cpu_verdict, Verdict::More);
    assert_eq!((dear.p50_verdict, dear.p99_verdict), (Verdict::More, Verdict::More), "{dear:?}");
    let figures = dear.figures.as_ref().unwrap();
    assert_eq!(figures.rate_reached, Some(true));
    assert!(figures.uncorrected_p99_ns.is_some());
    let behind = row(&result.cells[1], "slow").figures.as_ref().unwrap();
    assert_eq!(behind.rate_reached, Some(false));
    assert!(behind.reached_fraction.unwrap() < 0.5);
    let told = |finding: &&anello_lab::result::Finding| finding.text.starts_with("Did not keep up");
    let told = result.findings.iter().find(told).expect("told");
    assert!(told.text.contains("slow at 80 connections, 128 bytes, 100,000 requests/s offered"), "{told:?}");
    assert!(!told.text.contains("at 80 connections, 128 bytes, 20,000"), "{told:?}");
    assert!(result.cells[0].p99_resolution.is_some() && result.cells[0].rate_resolution.is_none());
}

#[test]
fn memory_of_idle_connections_is_that_of_fresh_servers() {
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
    let config = config(&["large"], vec![idle], 1);
    let large = SimulatedServer::costing(6_000.0).with_bytes_per_connection(8192);
    let simulation = Simulation::new(1, Noise::USUAL, &servers(&[("large", large)]));
    let result = simulate_on(&simulation, &config, None).unwrap();
    let large = row(&result.cells[0], "large");
    let bytes = large.memory_per_connection_bytes.expect("measured").median;
    assert!((8_000.0..8_400.0).contains(&bytes), "{bytes}");
    assert_eq!((large.memory_verdict, large.cpu_verdict), (Verdict::More, Verdict::NotComparable));
    assert_eq!(row(&result.cells[0], TWIN).memory_verdict, Verdict::NoDifference);
    assert!(large.figures.is_none());
    assert_eq!(simulation.processes_started(), 3 * config.passes * config.rounds, "one for each slice");
    assert_eq!((simulation.processes_left(), simulation.sessions_left()), (0, 0));
    let said = |text: &str| result.findings.iter().any(|finding| finding.text.contains(text));
    assert!(said("large against bare epoll. Memory per connection: "));
    assert!(said("No server here takes detectably less memory per connection"), "{:?}", result.findings);
    assert!(said("What the kernel keeps for a connection comes to it: it was not measured"));
}

#[test]
fn memory_that_is_taken_once_is_no_connections_memory() {
    let cells =
        [1, 11, 1000].map(|connections| Cell { workload: Workload::Idle, ..Cell::echo(1, connections) });
    let once = SimulatedServer::costing(6_000.0).with_bytes_once(5 << 20);
    let result = simulate(&config(&["once"], cells.to_vec(), 1), Noise::NONE, &[("once", once)]);
    let memory = |cell: usize| row(&result.cells[cell], "once").memory_per_connection_bytes.unwrap().median;
    assert_eq!((memory(1), memory(2)), (4096.0, 4096.0));
    assert!(memory(0) > 5e6, "of a single connection nothing can be told apart");
    let before =
        |cell: usize| result.slices.iter().find(|slice| slice.cell == cell).unwrap().connections_before;
    assert_eq!([0, 1, 2].map(before), [0, 5, 10]);
}

#[test]
fn connections_that_take_nothing_give_no_ratio() {
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
    let nothing = SimulatedServer::costing(6_000.0).with_bytes_per_connection(0);
    let result = simulate(&config(&["nothing"], vec![idle], 1), Noise::NONE, &[("nothing", nothing)]);
    let nothing = row(&result.cells[0], "nothing");
    assert_eq!((nothing.memory_ratio, nothing.memory_verdict), (None, Verdict::NotComparable));
    assert_eq!(nothing.memory_per_connection_bytes.unwrap().median, 0.0);
}

#[test]
fn disks_are_spoken_of_in_operations() {
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
fn slices_that_a_cpu_limit_held_back_are_dropped_and_counted() {
    let result = simulate(
        &config(&[], echo_cells(&[128], &[50]), 1),
        Noise { throttled: 0.3, stolen: 0.0, ..Noise::USUAL },
        &[],
    );
    let throttled = result.slices.iter().filter(|slice| slice.quality == Quality::Throttled).count();
    let counted: usize = result.cells[0].rows.iter().map(|row| row.throttled_slices).sum();
    assert!(throttled > 3 && throttled == counted);
    assert!(result.slices.iter().all(|slice| (slice.throttled_ns == 0) == (slice.quality == Quality::Clean)));
    assert!(result.findings.iter().any(|finding| finding.text.contains("a CPU limit held them back")));
}

/// Anello on both drivers against a peer of each kin, and one of unknown kin.
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

#[test]
fn anello_is_compared_with_peers_of_its_kin_and_a_lost_cell_is_named() {
    let costing = SimulatedServer::costing;
    let field = [
        ("anello io_uring", costing(5_000.0)),
        ("anello epoll", costing(6_000.0)),
        ("ring", costing(6_500.0)),
        ("tokio", costing(5_200.0)),
        ("other", costing(9_000.0)),
    ];
    // The simulation says "driver=simulated" when it is ready, which is no kin: all are compared with all.
    let result = simulate(&field_with_peers(), Noise::USUAL, &field);
    assert_eq!(result.versus.len(), 2 * 3 * 2);
    let headline: Vec<&str> = result
        .findings
        .iter()
        .filter(|finding| finding.kind == FindingKind::Headline)
        .map(|finding| finding.text.as_str())
        .collect();
    assert!(
        headline[0].starts_with("In no cell does one of 3 peers beat anello io_uring beyond"),
        "{headline:?}"
    );
    assert!(headline[1].starts_with("Of 3 peers, anello epoll is beaten in "), "{headline:?}");
    // 6,000 against 5,200 ns are 15 % more, give or take the luck of the processes.
    let mut lost = headline[1].split("tokio at 1 connection, 128 bytes (anello epoll: ").skip(1);
    let percent = lost.find_map(|text| text.split_once("\u{a0}% more server CPU")?.0.parse::<f64>().ok());
    assert!(percent.is_some_and(|percent| (13.0..18.0).contains(&percent)), "{headline:?}");
    let peer = result.findings.iter().filter(|finding| finding.kind == FindingKind::Peer);
    let texts: Vec<&str> = peer.map(|finding| finding.text.as_str()).collect();
    assert_eq!(texts.len(), 6, "{texts:?}");
    assert!(texts[0].starts_with("anello io_uring against ring. Server CPU per request: 2"), "{texts:?}");
}

#[test]
fn who_declares_a_driver_is_compared_with_its_kin_alone() {
    let names = ["anello io_uring", "anello epoll", "ring", "tokio", "other"];
    let field = names.map(|name| (name, SimulatedServer::costing(6_000.0)));
    let mut result = simulate(&field_with_peers(), Noise::USUAL, &field);
    for (record, contender) in result.contenders.iter_mut().zip(&field_with_peers().contenders) {
        record.driver.clone_from(&contender.driver);
    }
    anello_lab::analysis::analyse(&mut result);
    let mut pairs: Vec<(&str, &str)> =
        result.versus.iter().map(|versus| (versus.contender.as_str(), versus.peer.as_str())).collect();
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
fn a_stopped_run_is_taken_up_again_and_ends_as_if_it_had_not_been_stopped() {
    let cells = echo_cells(&[128, 1024], &[1, 50]);
    let config = LabConfig { check: true, passes: 5, rounds: 3, ..config(&["one"], cells, 7) };
    let field = servers(&[("one", SimulatedServer::costing(6_000.0))]);
    let whole = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, None).unwrap();
    // Stopped in the middle of a cell of the second pass: 9 slices to a cell, 4 cells to a pass.
    let stop = AtomicBool::new(false);
    let mut keeper = Keeper { stop_at_slice: Some((50, &stop)), ..Keeper::default() };
    let simulation = Simulation::new(7, Noise::NONE, &field);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    let part = run_from(&config, None, &mut load, &mut machine, &mut keeper, &stop).unwrap();
    assert!(part.interrupted && part.slices.len() == 50 && part.completed.len() == 5);
    assert!(part.latencies.iter().any(|record| record.unfinished_pass == Some(1)));
    let json = anello_lab::render_json(&part).unwrap();
    let again = LabResult::from_json(&json).unwrap();
    let resumed = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, Some(again)).unwrap();
    assert!(!resumed.interrupted);
    let order = |result: &LabResult| -> Vec<(usize, usize, usize, usize)> {
        let slices = result.slices.iter();
        slices.map(|slice| (slice.pass, slice.cell, slice.round, slice.contender)).collect()
    };
    assert_eq!(order(&resumed), order(&whole));
    assert_eq!(resumed.completed, whole.completed);
    assert_eq!(resumed.checks.len(), whole.checks.len());
    let counts = |result: &LabResult| -> Vec<(Outcome, usize, usize)> {
        let rows = result.cells.iter().flat_map(|cell| &cell.rows);
        rows.map(|row| (row.outcome.clone(), row.clean_slices, row.latency_curve.len())).collect()
    };
    assert_eq!(counts(&resumed), counts(&whole));
    assert_eq!(resumed.latencies, whole.latencies, "without noise the very same");
    // From a checkpoint, which has no figures, as well.
    let checkpoint = keeper.checkpoints.last().unwrap().clone();
    assert!(checkpoint.cells.is_empty() && checkpoint.completed.len() == 5);
    let resumed = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, Some(checkpoint)).unwrap();
    assert_eq!(order(&resumed), order(&whole));
}

#[test]
fn a_run_that_was_complete_has_nothing_left_to_do() {
    let config = config(&[], echo_cells(&[128], &[1, 50]), 7);
    let whole = simulate_on(&Simulation::new(7, Noise::NONE, &servers(&[])), &config, None).unwrap();
    let simulation = Simulation::new(7, Noise::NONE, &servers(&[]));
    let again = simulate_on(&simulation, &config, Some(whole.clone())).unwrap();
    assert_eq!(simulation.processes_started(), 0);
    assert_eq!((again.slices, again.cells), (whole.slices, whole.cells));
}

#[test]
fn another_plan_is_not_taken_up() {
    let first = config(&["one"], echo_cells(&[128], &[1, 50]), 7);
    let field = [("one", SimulatedServer::costing(6_000.0))];
    let result = simulate(&first, Noise::NONE, &field);
    let refused = |change: &dyn Fn(&mut LabConfig)| {
        let mut other = first.clone();
        change(&mut other);
        let simulation = Simulation::new(7, Noise::NONE, &servers(&field));
        match simulate_on(&simulation, &other, Some(result.clone())) {
            Err(LabError::Resume(why)) => {
                assert_eq!(simulation.processes_started(), 0);
                why
            }
            other => panic!("not refused: {other:?}"),
        }
    };
    assert_eq!(refused(&|config| config.seed = 8), "the seed is 7 there and 8 here");
    let cell = refused(&|config| config.cells[1] = Cell::echo(128, 51));
    assert_eq!(cell, "cell 2 is \"50 connections, 128 bytes\" there and \"51 connections, 128 bytes\" here");
    assert!(refused(&|config| config.contenders[2].name = "two".into()).contains("list of contenders"));
    assert!(refused(&|config| config.contenders[2].arguments.clear()).contains("command of one"));
    assert!(refused(&|config| config.rounds += 1).contains("rounds"));
    let driver = refused(&|config| config.load_driver = Some("io_uring".into()));
    assert_eq!(driver, "the driver of the load is None there and Some(\"io_uring\") here");
    assert!(refused(&|config| config.contenders[2].connections_limit = Some(9)).contains("most connections"));
}

#[test]
fn a_run_is_not_taken_up_with_a_program_built_anew() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("server");
    std::fs::write(&program, "one build").unwrap();
    let mut config = config(&["one"], echo_cells(&[128], &[1]), 7);
    config.contenders[2].program.clone_from(&program);
    let field = [("one", SimulatedServer::costing(6_000.0))];
    let result = simulate(&config, Noise::NONE, &field);
    let again =
        || simulate_on(&Simulation::new(7, Noise::NONE, &servers(&field)), &config, Some(result.clone()));
    assert!(again().is_ok());
    std::fs::write(&program, "another build").unwrap();
    match again() {
        Err(LabError::Resume(why)) => {
            assert!(why.starts_with("the program of one (by its hash) is "), "{why}")
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_run_is_not_taken_up_under_another_congestion_control() {
    let config = config(&[], echo_cells(&[128], &[1]), 7);
    let field = servers(&[]);
    let mut result = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, None).unwrap();
    result.environment.congestion_control = Some("bbr".to_owned());
    let again = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, Some(result));
    let Err(LabError::Resume(why)) = again else { panic!("not refused: {again:?}") };
    assert_eq!(why, "the congestion control is Some(\"bbr\") there and Some(\"cubic\") here");
}

#[test]
fn a_contender_disqualified_before_the_stop_stays_so() {
    let config = config(&["liar"], echo_cells(&[128], &[1, 50]), 3);
    let liar = SimulatedServer::costing(3_000.0).with_fault(Fault::LiesFrom(1));
    let field = servers(&[("liar", liar)]);
    let stop = AtomicBool::new(false);
    let mut keeper = Keeper { stop_after: Some((2, &stop)), ..Keeper::default() };
    let simulation = Simulation::new(3, Noise::NONE, &field);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    let part = run_from(&config, None, &mut load, &mut machine, &mut keeper, &stop).unwrap();
    assert_eq!(part.failures.len(), 2);
    let whole = simulate_on(&Simulation::new(3, Noise::NONE, &field), &config, Some(part)).unwrap();
    assert_eq!(whole.failures.len(), 2, "not asked again: {:?}", whole.failures);
}

#[test]
fn latencies_of_all_clean_slices_are_kept() {
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

#[test]
fn a_contender_that_cannot_rest_is_halted_while_others_have_their_turn() {
    let config = config(&["restless", "calm"], echo_cells(&[128], &[50]), 3);
    let all = servers(&[
        ("restless", SimulatedServer::costing(6_000.0).with_fault(Fault::Restless(0.3))),
        ("calm", SimulatedServer::costing(6_000.0)),
    ]);
    let result = simulate(&config, Noise::NONE, &all);
    let record = |name: &str| result.contenders.iter().find(|contender| contender.name == name).unwrap();
    assert_eq!(record("restless").idle_use, Some(0.3));
    assert_eq!(record("calm").idle_use, None);
    assert!(
        result.notes.iter().any(|note| note.starts_with("restless used 30 % of a core")),
        "{:?}",
        result.notes
    );
    assert!(result.failures.is_empty(), "{:?}", result.failures);
    // Undisturbed, the others cost what they cost alone; so does the restless one itself, which runs in its turns.
    let costs: Vec<f64> =
        result.cells[0].rows.iter().map(|row| row.figures.as_ref().unwrap().cpu_ns.median).collect();
    assert!(costs.iter().all(|cost| (cost - costs[0]).abs() < 1.0), "{costs:?}");
}

fn texts(result: &LabResult, kind: FindingKind) -> Vec<&str> {
    let findings = result.findings.iter().filter(|finding| finding.kind == kind);
    findings.map(|finding| finding.text.as_str()).collect()
}

#[test]
fn async_runtimes_are_met_whichever_way_they_do_io_and_kept_apart() {
    let mut config = field_with_peers();
    for contender in config.contenders.iter_mut().filter(|contender| contender.name == "tokio") {
        contender.kind = Some(Kind::Runtime);
    }
    let costing = SimulatedServer::costing;
    let field = [
        ("anello io_uring", costing(5_000.0)),
        ("anello epoll", costing(6_000.0)),
        ("ring", costing(6_500.0)),
        ("tokio", costing(5_000.0)),
        ("other", costing(9_000.0)),
    ];
    let mut result = simulate(&config, Noise::USUAL, &field);
    for (record, contender) in result.contenders.iter_mut().zip(&config.contenders) {
        record.driver.clone_from(&contender.driver);
    }
    anello_lab::analysis::analyse(&mut result);
    let pairs = result.runtime_versus.iter();
    let pairs: Vec<(&str, &str)> =
        pairs.map(|versus| (versus.contender.as_str(), versus.peer.as_str())).collect();
    assert_eq!(pairs, [("anello io_uring", "tokio"); 2], "one for each cell");
    let told = texts(&result, FindingKind::Headline);
    let told: Vec<&&str> = told.iter().filter(|text| text.contains("async runtime")).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    for (text, why) in told.into_iter().zip(["no detectable difference", "more server CPU"]) {
        assert!(
            text.contains("in 0 of 1 comparison; not of tokio at 50 connections") && text.contains(why),
            "{text}"
        );
    }
    let faster = result.slices.iter_mut().filter(|slice| slice.contender == 5);
    faster.for_each(|slice| {
        (slice.cpu_ns, slice.elapsed_ns) = (slice.cpu_ns * 3 / 2, slice.elapsed_ns * 3 / 2)
    });
    anello_lab::analysis::analyse(&mut result);
    let told = texts(&result, FindingKind::Headline).join("\n");
    assert!(
        told.contains("anello io_uring is ahead of 1 async runtime (tokio) in all of 1 comparison")
            && told.contains("anello epoll is ahead of 1 async runtime (tokio) in all of 1 comparison"),
        "{told}"
    );
}

#[test]
fn copies_of_the_reference_tell_how_often_a_difference_is_claimed_where_there_is_none() {
    let names = ["copy a", "copy b"];
    let mut config = config(&names, echo_cells(&[128, 256], &[1, 20, 50]), 5);
    let arguments = config.contenders[0].arguments.clone();
    config.contenders.iter_mut().for_each(|contender| contender.arguments.clone_from(&arguments));
    let field = names.map(|name| (name, SimulatedServer::costing(6_000.0)));
    let result = simulate(&config, Noise::USUAL, &field);
    let first = texts(&result, FindingKind::Headline)[0];
    assert!(
        first.starts_with("Equal servers: copy a, copy b are the same command as bare epoll."),
        "{first}"
    );
    assert!(first.contains("No difference was claimed in 6 of 6 cells; 0 of them"), "{first}");
}

#[test]
fn without_a_twin_nothing_is_claimed_and_the_reader_is_told() {
    let mut config = config(&["dear"], echo_cells(&[128], &[50]), 1);
    config.contenders.remove(1);
    let result = simulate(&config, Noise::USUAL, &[("dear", SimulatedServer::costing(12_000.0))]);
    assert_eq!(row(&result.cells[0], "dear").cpu_verdict, Verdict::TooNoisy);
    let cautions = texts(&result, FindingKind::Caution).join("\n");
    assert!(cautions.contains("In 1 of 1 cell bare epoll was not measured a second time"), "{cautions}");
}

#[test]
fn one_pair_gives_no_verdict_however_many_slices_are_clean() {
    let config = config(&["dear"], echo_cells(&[128], &[50]), 1);
    let mut result = simulate(&config, Noise::NONE, &[("dear", SimulatedServer::costing(12_000.0))]);
    assert_eq!(row(&result.cells[0], "dear").cpu_verdict, Verdict::More);
    // Clean in passes 0 to 4 against 4 to 8: five clean slices each, and one pair.
    for slice in &mut result.slices {
        let spoilt = (slice.contender == 0 && slice.pass > 4) || (slice.contender == 2 && slice.pass < 4);
        if spoilt {
            slice.quality = Quality::Spoilt;
        }
    }
    anello_lab::analysis::analyse(&mut result);
    let row = row(&result.cells[0], "dear");
    assert_eq!((row.clean_slices, row.cpu_ratio.unwrap().pairs), (5, 1));
    assert_eq!((row.cpu_verdict, row.rate_verdict), (Verdict::TooNoisy, Verdict::TooNoisy));
}

#[test]
fn late_requests_are_told_and_a_load_that_is_behind_is_blamed_itself() {
    let cell = Cell { offered_per_second: Some(1_000), ..Cell::echo(128, 50) };
    let config = config(&["one"], vec![cell], 1);
    let mut result = simulate(&config, Noise::USUAL, &[("one", SimulatedServer::costing(6_000.0))]);
    assert_eq!(row(&result.cells[0], "one").figures.as_ref().unwrap().late_fraction, Some(0.0));
    let quiet = texts(&result, FindingKind::Caution).join("\n");
    assert!(!quiet.contains("after their time") && !quiet.contains("behind its schedule"), "{quiet}");
    for slice in &mut result.slices {
        slice.late = slice.offered.unwrap_or(0) / 10;
        slice.load_busy = if slice.contender == 2 { 1.0 } else { 0.3 };
    }
    anello_lab::analysis::analyse(&mut result);
    assert!(row(&result.cells[0], "one").figures.as_ref().unwrap().load_bottleneck);
    let cautions = texts(&result, FindingKind::Caution).join("\n");
    assert!(cautions.contains("or never: bare epoll at 50 connections"), "{cautions}");
    assert!(cautions.contains("server was not busy: one at 50 connections"), "{cautions}");
}

#[test]
fn the_cheapest_is_named_beside_the_runner_up() {
    let config = config(&["first", "second", "third"], echo_cells(&[128], &[20, 50]), 3);
    let costing = SimulatedServer::costing;
    let clear = [("first", costing(4_000.0)), ("second", costing(5_000.0)), ("third", costing(7_000.0))];
    let result = simulate(&config, Noise::USUAL, &clear);
    let text = texts(&result, FindingKind::Headline)[0];
    assert!(
        text.starts_with("Cheapest here: first") && text.contains("Beside the runner-up, second: "),
        "{text}"
    );
    let level = [("first", costing(5_000.0)), ("second", costing(5_000.0)), ("third", costing(7_000.0))];
    let result = simulate(&config, Noise::USUAL, &level);
    let text = texts(&result, FindingKind::Headline)[0];
    assert!(
        text.starts_with("Among the cheapest here: ") && text.contains("no detectable difference"),
        "{text}"
    );
}
