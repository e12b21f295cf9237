//! Kinds of contenders: who fails its check, who cannot rest, who is compared with whom and named first.

use anello_lab::peers::Kind;
use anello_lab::result::{Consequence, FindingKind, Outcome, Verdict};
use anello_lab::simulation::{Fault, Noise, SimulatedServer, Simulation};
use anello_lab::{LabConfig, LabResult, Role, echo_cells};

use super::{REFERENCE, TWIN, config, row, servers, simulate, simulate_on, texts};

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
fn a_contender_that_cannot_rest_is_halted_while_others_have_their_turn() {
    let config = config(&["restless", "calm"], echo_cells(&[128], &[50]), 3);
    let all = servers(&[
        ("restless", SimulatedServer::costing(6_000.0).with_fault(Fault::BusyWhenIdle(0.3))),
        ("calm", SimulatedServer::costing(6_000.0)),
    ]);
    let result = simulate(&config, Noise::NONE, &all);
    let record = |name: &str| result.contenders.iter().find(|contender| contender.name == name).unwrap();
    assert_eq!(record("restless").idle_cpu_fraction, Some(0.3));
    assert_eq!(record("calm").idle_cpu_fraction, None);
    let told = texts(&result, FindingKind::Resolution);
    let halted = told.iter().find(|text| text.starts_with("Halted while others had their turn"));
    assert!(halted.is_some_and(|text| text.ends_with(": restless (30\u{a0}% of a core).")), "{told:?}");
    assert!(result.failures.is_empty(), "{:?}", result.failures);
    // Undisturbed, the others cost what they cost alone; so does the restless one itself, which runs in its turns.
    let costs: Vec<f64> =
        result.cells[0].rows.iter().map(|row| row.figures.as_ref().unwrap().cpu_ns.median).collect();
    assert!(costs.iter().all(|cost| (cost - costs[0]).abs() < 1.0), "{costs:?}");
}

#[test]
fn a_contender_that_cannot_rest_is_halted_in_cells_that_it_sits_out() {
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
        assert_eq!(cost(&result, name), cost(&calm, name), "undisturbed in every pass");
    }
}

#[test]
fn a_contender_that_could_not_be_started_sits_out_the_pass_and_no_more() {
    let mut config = config(&["late", "once"], echo_cells(&[128], &[1, 50]), 3);
    (config.passes, config.rounds) = (3, 2);
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
fn only_who_was_never_measured_took_no_part() {
    let mut config = config(&["late"], echo_cells(&[128], &[1, 50]), 3);
    config.passes = 5;
    let late = SimulatedServer::costing(6_000.0).with_fault(Fault::CannotStartOnce);
    let mut result = simulate(&config, Noise::NONE, &[("late", late)]);
    assert_eq!(texts(&result, FindingKind::Failure), Vec::<&str>::new(), "measured in all cells");
    // As if the run had been stopped before it was measured in the first cell.
    result.slices.retain(|slice| (slice.contender, slice.cell) != (2, 0));
    anello_lab::analysis::analyse(&mut result);
    assert!(matches!(row(&result.cells[0], "late").outcome, Outcome::Skipped(_)));
    let told = texts(&result, FindingKind::Failure);
    assert_eq!(
        told,
        [
            "late was not measured at 1 connection, 128 bytes: it could not be started (exited with status 1: first start fails)."
        ]
    );
    // And here before any.
    result.slices.retain(|slice| slice.contender != 2);
    anello_lab::analysis::analyse(&mut result);
    let told = texts(&result, FindingKind::Failure);
    assert_eq!(told, ["late took no part: exited with status 1: first start fails."]);
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
            text.contains("in 0 of 1 comparison: of tokio in 0 of 1 cell (1 ") && text.contains(why),
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
fn every_peer_is_in_the_pairs_of_both_drivers_and_findings_speak_of_their_kin_alone() {
    let costing = SimulatedServer::costing;
    let field = [
        ("anello io_uring", costing(5_000.0)),
        ("anello epoll", costing(6_000.0)),
        ("ring", costing(9_000.0)),
        ("tokio", costing(9_000.0)),
        ("other", costing(9_000.0)),
    ];
    let mut result = simulate(&field_with_peers(), Noise::USUAL, &field);
    for (record, contender) in result.contenders.iter_mut().zip(&field_with_peers().contenders) {
        record.driver.clone_from(&contender.driver);
        record.kind = (record.name == "tokio").then_some(Kind::Loop);
    }
    anello_lab::analysis::analyse(&mut result);
    let mut met: Vec<String> = result
        .all_pair_comparisons()
        .map(|versus| format!("{}, {}, {}", versus.contender, versus.peer, versus.cell))
        .collect();
    met.sort_unstable();
    met.dedup();
    assert_eq!(
        (met.len(), result.all_pair_comparisons().count()),
        (2 * 3 * 2, 2 * 3 * 2),
        "each pair once: {met:?}"
    );
    let others = result.other_versus.iter();
    let mut pairs: Vec<(&str, &str)> =
        others.map(|versus| (versus.contender.as_str(), versus.peer.as_str())).collect();
    pairs.dedup();
    assert_eq!(pairs, [("anello epoll", "ring"), ("anello io_uring", "tokio")]);
    assert!(result.other_versus.iter().all(|versus| versus.cpu_verdict == Verdict::Less));
    let told = texts(&result, FindingKind::Peer);
    assert_eq!(told.len(), 4, "{told:?}");
    let of_others = ["anello epoll against ring", "anello io_uring against tokio"];
    assert!(!told.iter().any(|text| of_others.iter().any(|start| text.starts_with(start))), "{told:?}");
    let told = texts(&result, FindingKind::Headline).join("\n");
    let words = "does one of 2 peers not on epoll beat anello io_uring";
    assert!(told.contains(words) && !told.contains("3 peers"), "{told}");
    result.contenders.iter_mut().filter(|record| record.name == "other").for_each(|record| {
        record.driver = Some("io_uring".to_owned());
    });
    anello_lab::analysis::analyse(&mut result);
    let told = texts(&result, FindingKind::Headline).join("\n");
    assert!(told.contains("does one of 2 peers on io_uring beat anello io_uring"), "{told}");
    assert!(told.contains("does the one peer on epoll beat anello epoll"), "{told}");
}

#[test]
fn a_run_that_was_kept_before_there_were_all_pairs_gets_them() {
    let names = ["anello io_uring", "anello epoll", "ring", "tokio", "other"];
    let field = names.map(|name| (name, SimulatedServer::costing(6_000.0)));
    let mut result = simulate(&field_with_peers(), Noise::USUAL, &field);
    for (record, contender) in result.contenders.iter_mut().zip(&field_with_peers().contenders) {
        record.driver.clone_from(&contender.driver);
    }
    anello_lab::analysis::analyse(&mut result);
    let mut kept: serde_json::Value =
        serde_json::from_str(&anello_lab::render_json(&result).unwrap()).unwrap();
    kept.as_object_mut().unwrap().remove("other_versus").expect("the result has the field");
    let mut read = LabResult::from_json(&kept.to_string()).unwrap();
    assert_eq!((read.other_versus.len(), result.other_versus.len()), (0, 2 * 2));
    anello_lab::analysis::backfill(&mut read);
    assert_eq!(read, result);
}

#[test]
fn who_is_dearer_somewhere_is_not_the_cheapest() {
    let config = config(&["steep"], echo_cells(&[128], &[1, 300]), 1);
    // 4 µs against 6 at one connection; at 300 each request costs it 4.5 µs more.
    let steep = SimulatedServer::costing(4_000.0).with_cpu_ns_per_connection(15.0);
    let result = simulate(&config, Noise::USUAL, &[("steep", steep)]);
    let text = texts(&result, FindingKind::Headline)[0].replace('\u{a0}', " ");
    assert!(text.starts_with("Among the cheapest here: steep, with 3"), "{text}");
    assert!(text.contains("than bare epoll in 1 of 2 cells, but 6"), "{text}");
    assert!(text.ends_with("% more at 300 connections, 128 bytes."), "{text}");
}

#[test]
fn cells_in_which_nobody_was_compared_are_told() {
    let headline = |fault: Fault| {
        let dear = SimulatedServer::costing(9_000.0).with_fault(fault);
        let config = config(&["dear"], echo_cells(&[128], &[1, 50]), 1);
        let result = simulate(&config, Noise::USUAL, &[("dear", dear)]);
        texts(&result, FindingKind::Headline)[0].to_owned()
    };
    let nobody = "No server here takes detectably less CPU per request than bare epoll";
    assert_eq!(headline(Fault::None), format!("{nobody}."));
    let dies = headline(Fault::DiesAbove(50));
    assert_eq!(dies, format!("{nobody}, but in 1 of 2 cells no other could be compared with it."));
    assert_eq!(
        headline(Fault::CannotStart("no".to_owned())),
        "No other server could be compared with bare epoll, so that none can be said to take less CPU per request."
    );
}

#[test]
fn the_cheapest_is_named_beside_the_runner_up() {
    let config = config(&["first", "second", "third"], echo_cells(&[128], &[20, 50]), 3);
    let costing = SimulatedServer::costing;
    let clear = [("first", costing(4_000.0)), ("second", costing(5_000.0)), ("third", costing(7_000.0))];
    let result = simulate(&config, Noise::USUAL, &clear);
    let text = texts(&result, FindingKind::Headline)[0];
    assert!(
        text.starts_with("Cheapest here: first") && text.contains("Compared with the runner-up, second: "),
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
