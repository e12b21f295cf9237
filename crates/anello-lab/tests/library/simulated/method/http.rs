//! Tests for HTTP workloads: supported targets, checks, and comparisons for small and large responses.

use anello_lab::analysis::{analyse, backfill};
use anello_lab::compare::Change;
use anello_lab::measure::Measure;
use anello_lab::peak::sweeps;
use anello_lab::peers::Serves;
use anello_lab::result::{FindingKind, Outcome, PairComparison, Verdict};
use anello_lab::{
    Cell, LabConfig, LabResult, Role, Target, Workload, findings, render_html, render_json, render_markdown,
    render_table,
};

use super::{REFERENCE, TWIN, checks_of, claims, config, row, servers, simulate, simulate_on, texts};
use crate::simulated::lab::compare;
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

/// Returns the cells for all combinations of `targets` and `connections`.
fn cells(targets: &[Target], connections: &[usize]) -> Vec<Cell> {
    let of = |&target: &Target| connections.iter().map(move |&count| Cell::http(target, count));
    targets.iter().flat_map(of).collect()
}

/// Returns a configuration with `others`, the first of which supports only the fixed response.
fn with_framework(others: &[&str], cells: Vec<Cell>) -> LabConfig {
    let mut config = config(others, cells, 1);
    config.contenders.iter_mut().for_each(|contender| contender.serves = vec![Serves::Files]);
    config.contenders[2].serves = vec![Serves::Fixed];
    config
}

#[test]
fn unsupported_target_is_skipped_without_failure() {
    let costing = SimulatedServer::costing;
    let field = [("framework", costing(3_000.0)), ("files", costing(9_000.0))];
    let config = with_framework(&["framework", "files"], cells(&[Target::Page, Target::Fixed], &[50]));
    let result = simulate(&config, Noise::USUAL, &field);
    let slices = config.timing.passes * config.timing.rounds * (3 + 4);
    assert_eq!(config.slice_count(), slices, "without the slices of the skipped contender");
    assert_eq!(result.failures, []);
    let outcome = |cell: usize, name: &str| row(&result.cells[cell], name).outcome.clone();
    assert_eq!(outcome(0, "framework"), Outcome::NotServed("it does not serve page.html".to_owned()));
    assert_eq!(outcome(1, "framework"), Outcome::Measured);
    for name in [REFERENCE, TWIN, "files"] {
        assert_eq!((outcome(0, name), outcome(1, name)), (Outcome::Measured, Outcome::Measured));
    }
    assert_eq!(row(&result.cells[1], "framework").comparison.cpu_verdict, Verdict::Less);
    assert_eq!(row(&result.cells[0], "files").comparison.cpu_verdict, Verdict::More);
    let table = render_table(&result);
    assert!(
        table.contains("not served: it does not serve page.html") && table.contains(" not served\n"),
        "{table}"
    );
    assert!(table.contains("HTTP, page.html (6 KiB): server CPU per request"), "{table}");
    let html = render_html(&result);
    assert!(html.contains("not served: it does not serve page.html"));
    assert!(html.contains("<td class=\"muted\">not served</td>"));
    let read = LabResult::from_json(&render_json(&result).unwrap()).unwrap();
    assert_eq!(
        (&read.plan.cells, &read.cells, &read.contenders),
        (&result.plan.cells, &result.cells, &result.contenders)
    );
}

#[test]
fn http_servers_are_compared_by_cpu() {
    let field = [("equal", SimulatedServer::costing(6_000.0)), ("dearer", SimulatedServer::costing(7_200.0))];
    let cells = cells(&[Target::Hello, Target::Page], &[1, 50, 100, 300, 1000]);
    let mut config = config(&["equal", "dearer"], cells, 3);
    config.contenders.iter_mut().for_each(|contender| contender.driver = Some("epoll".to_owned()));
    config.contenders[2].role = Role::Anello;
    let result = simulate(&config, Noise::USUAL, &field);
    let claimed: usize = result.cells.iter().map(|cell| claims(cell, "equal")).sum();
    assert!(claimed <= 1, "{claimed} of {} cells", result.cells.len());
    for cell in &result.cells {
        assert_eq!(row(cell, "dearer").comparison.cpu_verdict, Verdict::More, "{}", cell.cell);
        assert_eq!(
            Measure::P99.resolution(cell),
            None,
            "the latency of small responses follows from the rate"
        );
    }
    let peaks = sweeps(&result);
    assert_eq!(peaks.len(), 2, "one sweep per target, of the four cells with 80 % of a core");
    assert_eq!(peaks[0].server_share, 0.8);
    let markdown = render_markdown(std::slice::from_ref(&result));
    assert!(markdown.contains("equal against peers: cells better / equal / worse"), "{markdown}");
    assert!(markdown.contains("HTTP, page.html (6 KiB)"), "{markdown}");
    let again = compare(&result, &result, 0.05);
    let cells = |change: &Change| result.plan.cells.contains(&change.cell) && change.contender == "dearer";
    assert!(again.changes.iter().any(cells) && again.regressions == 0, "{:?}", again.changes);
}

#[test]
fn large_responses_run_unthrottled_and_compare_p99() {
    let cells = cells(&[Target::Large, Target::Huge], &[50, 300]);
    let simulation = Simulation::new(1, Noise::USUAL, &servers(&[])).with_throttle_error("no such core");
    let result = simulate_on(&simulation, &config(&[], cells.clone(), 1), None).unwrap();
    assert!(
        result.notes.iter().all(|note| !note.contains("no such core")),
        "no server is throttled: {:?}",
        result.notes
    );
    assert!(
        result
            .notes
            .iter()
            .any(|note| note.starts_with("In cells with large responses, servers could use their full cores"))
    );
    for cell in &result.cells {
        assert!(Measure::P99.resolution(cell).is_some(), "{}", cell.cell);
        assert_eq!(row(cell, REFERENCE).comparison.p99_verdict, Verdict::Reference);
    }
    let small = simulate(&config(&[], vec![Cell::http(Target::Page, 50)], 1), Noise::NONE, &[]);
    assert!(small.notes.iter().any(|note| note.contains("80 % of their cores")), "{:?}", small.notes);
    assert!(small.notes.iter().all(|note| !note.contains("large responses")));
}

#[test]
fn checks_cover_supported_targets() {
    let losing = SimulatedServer::costing(1_000.0).with_fault(Fault::LosesBytes);
    let others = ["framework", "loser"];
    let config =
        LabConfig { check: true, ..with_framework(&others, cells(&[Target::Hello, Target::Fixed], &[50])) };
    let field = [("framework", SimulatedServer::costing(6_000.0)), ("loser", losing)];
    let result = simulate(&config, Noise::USUAL, &field);
    let made = checks_of(&result);
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
    assert!(failures.iter().any(|text| text.starts_with("loser: failed its check")), "{failures:?}");
    assert!(matches!(row(&result.cells[1], "loser").outcome, Outcome::CheckFailed(_)));
}

#[test]
fn cells_with_different_connection_use_form_separate_groups() {
    let cell = |pipelining, reconnect| {
        let workload = Workload::Http { target: Target::Hello, pipelining, reconnect, cipher: None };
        Cell { workload, ..Cell::echo(1, 50) }
    };
    let cells = vec![cell(1, false), cell(16, false), cell(1, true)];
    let result = simulate(&config(&[], cells, 1), Noise::USUAL, &[]);
    assert_eq!(result.groups().len(), 3);
    let table = render_table(&result);
    for title in
        ["HTTP, hello.txt (13 bytes), pipelining 16", "HTTP, hello.txt (13 bytes), a connection per request"]
    {
        assert!(table.contains(title), "{title}: {table}");
    }
}

/// Returns the result of a run with these names, drivers and costs. The first contender is an anello contender.
fn with_drivers(field: &[(&'static str, &str, f64)], cells: Vec<Cell>, seed: u64) -> LabResult {
    let names: Vec<&str> = field.iter().map(|(name, ..)| *name).collect();
    let costs: Vec<(&'static str, SimulatedServer)> =
        field.iter().map(|(name, _, cost_ns)| (*name, SimulatedServer::costing(*cost_ns))).collect();
    let mut config = config(&names, cells, seed);
    config.contenders[2].role = Role::Anello;
    let mut result = simulate(&config, Noise::USUAL, &costs);
    // The simulated servers report the driver "simulated".
    for (record, (_, driver, _)) in result.contenders.iter_mut().skip(2).zip(field) {
        record.driver = Some((*driver).to_owned());
    }
    analyse(&mut result);
    result
}

#[test]
fn headline_includes_http_server_with_other_driver() {
    let field = [
        ("anello io_uring", "io_uring", 6_000.0),
        ("ntex", "io_uring", 9_000.0),
        ("nginx", "epoll", 4_500.0),
    ];
    let result = with_drivers(&field, vec![Cell::http(Target::Page, 50)], 1);
    let ours = |versus: &PairComparison| (versus.contender.clone(), versus.peer.clone());
    let pair = ("anello io_uring".to_owned(), "nginx".to_owned());
    assert_eq!(result.other_comparisons.iter().map(ours).collect::<Vec<_>>(), [pair]);
    let headline = texts(&result, FindingKind::Headline)[0];
    assert_eq!(headline, "anello io_uring beats 2 peers on CPU in 1 of 2 comparisons, loses 1 (saturated).");
    let decision = findings::decision(&result, &result.contenders[2]).unwrap();
    let lost: Vec<(&str, Cell)> =
        decision.lost.iter().map(|(_, pair)| (pair.peer.as_str(), pair.cell)).collect();
    assert!(lost.contains(&("nginx", Cell::http(Target::Page, 50))), "{lost:?}");
    let level = [field[0], field[1], ("nginx", "epoll", 9_000.0)];
    let result = with_drivers(&level, vec![Cell::http(Target::Page, 50)], 1);
    let headline = texts(&result, FindingKind::Headline)[0];
    assert_eq!(headline, "anello io_uring beats 2 peers on CPU in 2 of 2 comparisons, loses 0 (saturated).");
}

/// Returns a result with two servers of equal total cost and an expensive one. Part of the load generator's CPU time is
/// moved to the second server, as if that server did more of the kernel's work.
fn with_shifted_work(seed: u64) -> LabResult {
    let field =
        [("anello epoll", "epoll", 6_000.0), ("shifted", "epoll", 6_000.0), ("dear", "epoll", 60_000.0)];
    let mut result = with_drivers(&field, cells(&[Target::Large], &[50, 300]), seed);
    for slice in result.slices.iter_mut().filter(|slice| slice.contender == 3) {
        let shifted_ns = slice.cpu_ns * 2 / 5;
        (slice.cpu_ns, slice.load_cpu_ns) = (slice.cpu_ns + shifted_ns, slice.load_cpu_ns - shifted_ns);
    }
    analyse(&mut result);
    result
}

#[test]
fn total_cpu_ignores_work_shifted_between_server_and_load() {
    let result = with_shifted_work(1);
    for cell in &result.cells {
        assert!(Measure::TotalCpu.applies(&cell.cell) && Measure::TotalCpu.resolution(cell).is_some());
        let shifted = row(cell, "shifted");
        let verdicts = (shifted.comparison.cpu_verdict, shifted.comparison.total_cpu_verdict);
        assert_eq!(verdicts, (Verdict::More, Verdict::NoDifference), "{}", cell.cell);
        assert_eq!(row(cell, "dear").comparison.total_cpu_verdict, Verdict::More);
        assert_eq!(row(cell, REFERENCE).comparison.total_cpu_verdict, Verdict::Reference);
        let figures = shifted.figures.as_ref().unwrap();
        assert!(figures.total_cpu_ns.unwrap().median > figures.cpu_ns.median);
    }
    let against = |peer| result.peer_comparisons.iter().filter(move |versus| versus.peer == peer);
    let verdicts =
        |versus: &PairComparison| (versus.comparison.cpu_verdict, versus.comparison.total_cpu_verdict);
    assert!(against("shifted").all(|versus| verdicts(versus) == (Verdict::Less, Verdict::NoDifference)));
    assert!(against("dear").all(|versus| verdicts(versus) == (Verdict::Less, Verdict::Less)));
    let words = "CPU of server and load generator per request";
    for text in [render_table(&result), render_html(&result), render_markdown(std::slice::from_ref(&result))]
    {
        assert!(text.contains(words), "{text}");
    }
    let caution = texts(&result, FindingKind::Caution).join(" ");
    assert!(
        caution.contains("Large responses: compare the combined CPU of server and load generator"),
        "{caution}"
    );
    let headline = texts(&result, FindingKind::Headline).join(" ");
    assert_eq!(
        headline,
        "anello epoll beats 2 peers on total CPU in 2 of 4 comparisons, loses 0 (whole core)."
    );
}

/// Removes all fields whose names start with `prefix` from a JSON value.
fn strip(value: &mut serde_json::Value, prefix: &str) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.retain(|name, _| !name.starts_with(prefix));
            fields.values_mut().for_each(|value| strip(value, prefix));
        }
        serde_json::Value::Array(all) => all.iter_mut().for_each(|value| strip(value, prefix)),
        _ => {}
    }
}

#[test]
fn add_missing_adds_total_cpu_to_old_run() {
    let result = with_shifted_work(2);
    let mut old = serde_json::from_str(&render_json(&result).unwrap()).unwrap();
    strip(&mut old, "total_cpu");
    let mut read = LabResult::from_json(&old.to_string()).unwrap();
    assert!(
        read.cells.iter().flat_map(|cell| &cell.rows).all(|row| row.comparison.total_cpu_ratio.is_none())
    );
    for text in [render_table(&read), render_html(&read), render_markdown(std::slice::from_ref(&read))] {
        assert!(!text.is_empty());
    }
    backfill(&mut read);
    assert_eq!(read, result);
    // The comparison is computed from the slices, so runs recorded by old and new versions can be compared.
    let again = compare(&read, &result, 0.05);
    assert!(again.changes.iter().any(|change| change.measure == Some(Measure::TotalCpu)));
}
