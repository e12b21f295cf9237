//! Results that are not as a run leaves them: older, empty, or put together by hand.

use anello_lab::compare::{compare, render_comparison};
use anello_lab::simulation::Noise;
use anello_lab::{Cell, LabResult, Workload, render_html, render_page, render_plots, render_table};

use super::{check_markup, sample, simulate_in};

#[test]
fn a_result_of_before_these_fields_is_read() {
    let result = sample();
    let mut old: serde_json::Value =
        serde_json::from_str(&anello_lab::render_json(&result).unwrap()).unwrap();
    let without = |object: &mut serde_json::Value, fields: &[&str]| {
        for field in fields {
            object.as_object_mut().unwrap().remove(*field).expect(field);
        }
    };
    for contender in old["contenders"].as_array_mut().unwrap() {
        without(contender, &["commit", "library_checksum", "server_commit"]);
    }
    for environment in ["environment", "environment_after"] {
        let added = ["vulnerable", "mitigations_at_boot", "processes", "sysctls", "disk"];
        without(&mut old[environment], &added);
    }
    assert_eq!(LabResult::from_json(&old.to_string()).unwrap().contenders, result.contenders);
}

#[test]
fn a_run_that_measured_nothing_still_makes_reports() {
    let mut result = sample();
    result.slices.clear();
    result.findings.clear();
    for row in result.cells.iter_mut().flat_map(|cell| &mut cell.rows) {
        (row.figures, row.cpu_ratio, row.rate_ratio) = (None, None, None);
        row.latency_curve.clear();
    }
    check_markup(&render_html(&result)).unwrap();
    assert!(render_plots(&result).is_empty());
    assert!(render_table(&result).contains("failures"));
    result.cells.clear();
    check_markup(&render_html(&result)).unwrap();
    assert!(render_table(&result).lines().all(|line| line.chars().count() <= 108));
    check_markup(&render_page(&[])).unwrap();
}

/// A result that was read is whole; one that a program has put together may be anything.
#[test]
fn a_result_put_together_by_hand_still_makes_reports() {
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
            let mut odd = result.clone();
            change(&mut odd);
            check_markup(&render_html(&odd)).unwrap_or_else(|why| panic!("change {index}: {why}"));
            for (name, svg) in render_plots(&odd) {
                check_markup(&svg).unwrap_or_else(|why| panic!("change {index}, {name}: {why}"));
            }
            assert!(render_table(&odd).lines().all(|line| line.chars().count() <= 108), "change {index}");
            for (before, after) in [(&odd, &result), (&result, &odd)] {
                assert!(!render_comparison(&compare(before, after, 0.05)).is_empty(), "change {index}");
            }
        }
    }
}
