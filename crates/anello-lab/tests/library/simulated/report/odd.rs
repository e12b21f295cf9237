//! Tests with unusual results: results from older versions, empty results, and results constructed by a program.

use anello_lab::compare::render_comparison;
use anello_lab::{Cell, LabResult, Workload, render_html, render_page, render_plots, render_table};

use super::{check_markup, sample, simulate_in};
use crate::simulated::lab::compare;
use crate::simulated::simulation::Noise;

#[test]
fn result_without_newer_fields_is_parsed() {
    let result = sample();
    let mut old: serde_json::Value =
        serde_json::from_str(&anello_lab::render_json(&result).unwrap()).unwrap();
    let remove = |object: &mut serde_json::Value, fields: &[&str]| {
        for field in fields {
            object.as_object_mut().unwrap().remove(*field).expect(field);
        }
    };
    for contender in old["contenders"].as_array_mut().unwrap() {
        remove(contender, &["commit", "library_checksum", "server_commit"]);
    }
    for environment in ["environment", "environment_after"] {
        let added = ["vulnerable", "mitigations_at_boot", "processes", "sysctls", "disk"];
        remove(&mut old[environment], &added);
    }
    assert_eq!(LabResult::from_json(&old.to_string()).unwrap().contenders, result.contenders);
}

#[test]
fn empty_run_renders_reports() {
    let mut result = sample();
    result.slices.clear();
    result.findings.clear();
    for row in result.cells.iter_mut().flat_map(|cell| &mut cell.rows) {
        (row.figures, row.comparison.cpu_ratio, row.comparison.rate_ratio) = (None, None, None);
        row.latency_curve.clear();
    }
    check_markup(&render_html(&result)).unwrap();
    assert!(render_plots(&result).is_empty());
    assert!(render_table(&result).contains("\nFailures\n"));
    result.cells.clear();
    check_markup(&render_html(&result)).unwrap();
    assert!(render_table(&result).lines().all(|line| line.chars().count() <= 108));
    check_markup(&render_page(&[])).unwrap();
}

/// Parsed results are always consistent. Results constructed by a program may be inconsistent.
#[test]
fn inconsistent_result_renders_reports() {
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
    let idle = simulate_in(vec![idle], Noise::USUAL);
    type Change = fn(&mut LabResult);
    let changes: [Change; 9] = [
        |result| result.contenders.clear(),
        |result| drop(result.contenders.pop()),
        |result| result.contenders.extend(result.contenders.clone()),
        |result| result.cells.clear(),
        |result| result.plan.cells.clear(),
        |result| result.plan.cells.truncate(1),
        |result| result.cells.iter_mut().for_each(|cell| cell.rows.clear()),
        |result| result.plan.reference.clear(),
        |result| (result.plan.passes, result.plan.rounds) = (0, 0),
    ];
    for result in [sample(), idle] {
        for (index, change) in changes.into_iter().enumerate() {
            let mut changed = result.clone();
            change(&mut changed);
            check_markup(&render_html(&changed)).unwrap_or_else(|why| panic!("change {index}: {why}"));
            for (name, svg) in render_plots(&changed) {
                check_markup(&svg).unwrap_or_else(|why| panic!("change {index}, {name}: {why}"));
            }
            assert!(render_table(&changed).lines().all(|line| line.chars().count() <= 108), "change {index}");
            for (before, after) in [(&changed, &result), (&result, &changed)] {
                assert!(!render_comparison(&compare(before, after, 0.05)).is_empty(), "change {index}");
            }
        }
    }
}

#[test]
fn times_are_those_of_the_calendar() {
    let started = |started_unix_s: u64| LabResult { started_unix_s, ..LabResult::default() };
    for (unix_s, name) in [(0, "lab-19700101T000000Z.json"), (951_782_400, "lab-20000229T000000Z.json")] {
        let directory = tempfile::tempdir().unwrap();
        let paths = anello_lab::write_reports(&started(unix_s), directory.path()).unwrap();
        assert_eq!(paths.json.file_name().unwrap(), name);
    }
    for (unix_s, time) in [
        (1_795_295_223, "\n2026-11-21 21:07 UTC; "),
        (4_107_542_399, "\n2100-02-28 23:59 UTC; "),
        (4_107_542_400, "\n2100-03-01 00:00 UTC; "),
    ] {
        assert!(render_table(&started(unix_s)).contains(time), "{time}");
    }
}

#[test]
fn equal_failures_are_listed_once() {
    use anello_lab::result::{Consequence, Failure};
    let failure = |pass: usize, what: &str| Failure {
        contender: "one".to_owned(),
        cell: None,
        pass,
        what: what.to_owned(),
        consequence: Consequence::SkippedPass,
    };
    let failures = vec![failure(0, "no"), failure(1, "never"), failure(2, "no")];
    let table = render_table(&LabResult { failures, ..LabResult::default() });
    let listed = "\nFailures\n- one: pass 1, 3; at the start; no; skipped in this pass\n\
                  - one: pass 2; at the start; never; skipped in this pass\n\n";
    assert!(table.contains(listed), "{table}");
}
