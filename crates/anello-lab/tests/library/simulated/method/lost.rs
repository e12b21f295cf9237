//! Runs whose machine is lost.

use std::collections::BTreeSet;

use anello_lab::{Cell, LabConfig, LabError, Workload, echo_cells};

use super::{config, servers, simulate_on};
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

/// Calls of the machine that the run makes.
const CALLS: [&str; 14] = [
    "environment",
    "executables",
    "exit_description",
    "load_cpu_ns",
    "max_open_connections",
    "other_cpu_ns",
    "prepare",
    "set_paused",
    "start",
    "stolen_ns",
    "stop",
    "throttle_servers",
    "throttled_ns",
    "unthrottle_servers",
];

#[test]
fn machine_that_is_lost_in_any_call_ends_run_with_results_so_far() {
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(128, 100) };
    let cells = echo_cells(&[128], &[200]).into_iter().chain([idle]).collect();
    let mut config = LabConfig { check: true, ..config(&["busy", "dies"], cells, 7) };
    (config.timing.passes, config.timing.rounds, config.cores.server_share) = (1, 2, 0.7);
    let costing = SimulatedServer::costing(6_000.0);
    let field = servers(&[
        ("busy", costing.clone().with_fault(Fault::BusyWhenIdle(0.5))),
        ("dies", costing.with_fault(Fault::DiesOnce(3))),
    ]);
    let whole = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, None).unwrap();
    let mut lost_in = BTreeSet::new();
    for calls in 0.. {
        let simulation = Simulation::new(7, Noise::NONE, &field).lost_after(calls);
        let result = simulate_on(&simulation, &config, None);
        let Some(call) = simulation.lost_in() else {
            assert_eq!(result.unwrap(), whole, "{calls} calls suffice");
            break;
        };
        lost_in.insert(call);
        match result {
            Err(LabError::Machine(text)) => {
                assert_eq!(text, "lost the connection to the simulated host", "{call}");
                assert!(["environment", "executables", "other_cpu_ns", "prepare"].contains(&call), "{call}");
            }
            Err(error) => panic!("{call}: {error}"),
            Ok(result) => {
                assert!(result.interrupted, "{call}");
                let note = "The run was stopped early: lost the connection to the simulated host.";
                assert_eq!(result.notes.last().map(String::as_str), Some(note), "{call}");
                // No contender is blamed, and no figure is invented.
                assert!(whole.failures.starts_with(&result.failures), "{call}: {:?}", result.failures);
                assert!(whole.checks.starts_with(&result.checks), "{call}");
                assert!(whole.slices.starts_with(&result.slices), "{call}");
                assert!(whole.completed.starts_with(&result.completed), "{call}");
            }
        }
        assert_eq!(simulation.sessions_left(), 0, "{call}");
    }
    assert_eq!(lost_in.into_iter().filter(|&call| call != "usage").collect::<Vec<_>>(), CALLS);
}
