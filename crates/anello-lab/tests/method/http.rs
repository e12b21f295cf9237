//! HTTP: who serves what, what is checked, and how small and large answers are compared.

use anello_lab::compare::{Change, compare};
use anello_lab::peak::sweeps;
use anello_lab::peers::Serves;
use anello_lab::result::{FindingKind, Outcome, Verdict};
use anello_lab::simulation::{Fault, Noise, SimulatedServer, Simulation};
use anello_lab::{
    Cell, LabConfig, LabResult, Role, Target, Workload, render_html, render_json, render_markdown,
    render_table,
};

use super::{REFERENCE, TWIN, claims, config, row, servers, simulate, simulate_on, texts};

/// Cells of these targets with so many connections each.
fn cells(targets: &[Target], connections: &[usize]) -> Vec<Cell> {
    let of = |&target: &Target| connections.iter().map(move |&count| Cell::http(target, count));
    targets.iter().flat_map(of).collect()
}

/// A run of these others, of which the first serves nothing but the fixed answer.
fn with_framework(others: &[&str], cells: Vec<Cell>) -> LabConfig {
    let mut config = config(others, cells, 1);
    config.contenders.iter_mut().for_each(|contender| contender.serves = vec![Serves::Files]);
    config.contenders[2].serves = vec![Serves::Fixed];
    config
}

#[test]
fn a_contender_sits_out_what_it_does_not_serve_with_a_word_and_without_a_failure() {
    let costing = SimulatedServer::costing;
    let field = [("framework", costing(3_000.0)), ("files", costing(9_000.0))];
    let config = with_framework(&["framework", "files"], cells(&[Target::Page, Target::Fixed], &[50]));
    let result = simulate(&config, Noise::USUAL, &field);
    assert_eq!(result.failures, []);
    let outcome = |cell: usize, name: &str| row(&result.cells[cell], name).outcome.clone();
    assert_eq!(outcome(0, "framework"), Outcome::NotServed("it does not serve page.html".to_owned()));
    assert_eq!(outcome(1, "framework"), Outcome::Measured);
    for name in [REFERENCE, TWIN, "files"] {
        assert_eq!((outcome(0, name), outcome(1, name)), (Outcome::Measured, Outcome::Measured));
    }
    assert_eq!(row(&result.cells[1], "framework").cpu_verdict, Verdict::Less);
    assert_eq!(row(&result.cells[0], "files").cpu_verdict, Verdict::More);
    let table = render_table(&result);
    assert!(
        table.contains("takes no part here: it does not serve page.html") && table.contains("n/a"),
        "{table}"
    );
    assert!(table.contains("HTTP, page.html (6 KiB): server CPU per request"), "{table}");
    let html = render_html(&result);
    assert!(html.contains("Takes no part here: it does not serve page.html"));
    assert!(html.contains("<td class=\"none\">not served</td>"));
    let read = LabResult::from_json(&render_json(&result).unwrap()).unwrap();
    assert_eq!(
        (&read.plan.cells, &read.cells, &read.contenders),
        (&result.plan.cells, &result.cells, &result.contenders)
    );
}

#[test]
fn equal_http_servers_are_called_equal_and_unequal_ones_told_apart() {
    let field = [("equal", SimulatedServer::costing(6_000.0)), ("dearer", SimulatedServer::costing(7_200.0))];
    let cells = cells(&[Target::Hello, Target::Page], &[1, 50, 100, 300, 1000]);
    let mut config = config(&["equal", "dearer"], cells, 3);
    config.contenders.iter_mut().for_each(|contender| contender.driver = Some("epoll".to_owned()));
    config.contenders[2].role = Role::Anello;
    let result = simulate(&config, Noise::USUAL, &field);
    let claimed: usize = result.cells.iter().map(|cell| claims(cell, "equal")).sum();
    assert!(claimed <= 1, "{claimed} of {} cells", result.cells.len());
    for cell in &result.cells {
        assert_eq!(row(cell, "dearer").cpu_verdict, Verdict::More, "{}", cell.cell);
        assert_eq!(cell.p99_resolution, None, "the latency of small answers is the rate in another form");
    }
    let peaks = sweeps(&result);
    assert_eq!(peaks.len(), 2, "four numbers of connections with four fifths of a core, for each target");
    assert_eq!(peaks[0].server_share, 0.8);
    let markdown = render_markdown(std::slice::from_ref(&result));
    assert!(markdown.contains("### equal, cells won / level / lost"), "{markdown}");
    assert!(markdown.contains("HTTP, page.html (6 KiB)"), "{markdown}");
    let again = compare(&result, &result, 0.05);
    let cells = |change: &Change| result.plan.cells.contains(&change.cell) && change.contender == "dearer";
    assert!(again.changes.iter().any(cells) && again.regressions == 0, "{:?}", again.changes);
}

#[test]
fn servers_of_large_answers_are_not_held_back_and_compared_by_their_slowest_answers_too() {
    let cells = cells(&[Target::Large, Target::Huge], &[50, 300]);
    let refused = Simulation::new(1, Noise::USUAL, &servers(&[])).with_brake_refused("no such core");
    let result = simulate_on(&refused, &config(&[], cells.clone(), 1), None).unwrap();
    assert!(
        result.notes.iter().all(|note| !note.contains("no such core")),
        "nobody is held back: {:?}",
        result.notes
    );
    assert!(
        result
            .notes
            .iter()
            .any(|note| note.starts_with("Where answers are large, servers had all of their cores"))
    );
    for cell in &result.cells {
        assert!(cell.p99_resolution.is_some(), "{}", cell.cell);
        assert_eq!(row(cell, REFERENCE).p99_verdict, Verdict::Reference);
    }
    let small = simulate(&config(&[], vec![Cell::http(Target::Page, 50)], 1), Noise::NONE, &[]);
    assert!(small.notes.iter().any(|note| note.contains("80 % of their cores")), "{:?}", small.notes);
    assert!(small.notes.iter().all(|note| !note.contains("answers are large")));
}

#[test]
fn servers_are_checked_for_what_they_serve() {
    let losing = SimulatedServer::costing(1_000.0).with_fault(Fault::LosesBytes);
    let others = ["framework", "loser"];
    let config =
        LabConfig { check: true, ..with_framework(&others, cells(&[Target::Hello, Target::Fixed], &[50])) };
    let field = [("framework", SimulatedServer::costing(6_000.0)), ("loser", losing)];
    let result = simulate(&config, Noise::USUAL, &field);
    let made: Vec<(&str, &str, bool)> = result
        .checks
        .iter()
        .map(|check| (check.contender.as_str(), check.what.as_str(), check.passed))
        .collect();
    let expected = [
        (REFERENCE, "complete bytes", true),
        (REFERENCE, "stalled reader", true),
        (REFERENCE, "5000 connections", true),
        ("framework", "complete bytes", true),
        ("framework", "5000 connections", true),
        ("loser", "complete bytes", true),
        ("loser", "stalled reader", false),
    ];
    assert_eq!(made, expected);
    let failures = texts(&result, FindingKind::Failure);
    assert!(failures.iter().any(|text| text.starts_with("loser failed its check")), "{failures:?}");
    assert!(matches!(row(&result.cells[1], "loser").outcome, Outcome::CheckFailed(_)));
}

#[test]
fn cells_that_differ_in_how_connections_are_used_are_kept_apart() {
    let manner = |pipelining, reconnect| {
        let workload = Workload::Http { target: Target::Hello, pipelining, reconnect, cipher: None };
        Cell { workload, ..Cell::echo(1, 50) }
    };
    let cells = vec![manner(1, false), manner(16, false), manner(1, true)];
    let result = simulate(&config(&[], cells, 1), Noise::USUAL, &[]);
    assert_eq!(result.groups().len(), 3);
    let table = render_table(&result);
    for title in
        ["HTTP, hello.txt (13 bytes), pipelining 16", "HTTP, hello.txt (13 bytes), a connection per request"]
    {
        assert!(table.contains(title), "{title}: {table}");
    }
}
