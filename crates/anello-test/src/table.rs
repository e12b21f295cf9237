//! The set-ups for which tests run.

use std::time::Duration;

use anello::sim::{SimModel, SimOptions};
use anello::{DisabledFeatures, DriverKind, DriverOptions, SubmissionPolling, TaskWork, ZeroCopy};

use crate::Setup;

/// Names of the set-ups on which a test runs unless `ANELLO_TEST_SETUP` selects others.
pub(crate) const DEFAULT_NAMES: [&str; 5] =
    ["uring", "uring-min", "epoll", "sim-completion", "sim-readiness"];

/// Returns the two Linux drivers with their default options: io_uring, then epoll.
pub fn both_drivers() -> Vec<Setup> {
    vec![Setup::new("uring", DriverKind::Uring, |_| {}), Setup::new("epoll", DriverKind::Epoll, |_| {})]
}

/// Returns the two Linux drivers and the two models of a simulated kernel, all with their default options.
pub fn both_drivers_and_sim() -> Vec<Setup> {
    both_drivers().into_iter().chain(sim_setups().into_iter().take(2)).collect()
}

/// Returns a set-up for each feature of io_uring that can be missing, and the feature's name in reports.
pub fn fallback_setups() -> Vec<(&'static str, Setup)> {
    let without = |name, feature, disable: fn(&mut DisabledFeatures)| {
        (
            feature,
            Setup::new(name, DriverKind::Uring, |options| disable(&mut options.testing.disabled_features)),
        )
    };
    vec![
        without("uring-no-sqarray", "no-sqarray", |disabled| disabled.no_sqarray = true),
        without("uring-no-defer-taskrun", "defer-taskrun", |disabled| disabled.defer_taskrun = true),
        without("uring-no-single-issuer", "single-issuer", |disabled| disabled.single_issuer = true),
        without("uring-no-coop-taskrun", "coop-taskrun", |disabled| disabled.coop_taskrun = true),
        without("uring-no-multishot-recv", "multishot-recv", |disabled| disabled.multishot_receive = true),
        without("uring-no-multishot-accept", "multishot-accept", |disabled| disabled.multishot_accept = true),
        without("uring-no-buffer-ring", "buffer-ring", |disabled| disabled.buffer_ring = true),
        without("uring-no-msg-ring", "msg-ring", |disabled| disabled.msg_ring = true),
        without("uring-no-registered-ring", "registered-ring", |disabled| disabled.registered_ring = true),
        without("uring-no-cqe-skip", "cqe-skip", |disabled| disabled.cqe_skip = true),
        without("uring-no-send-zc", "send-zc", |disabled| disabled.zero_copy = true),
    ]
}

/// Disables every feature that the driver can do without, as on Linux 5.13.
fn disable_all(options: &mut DriverOptions) {
    let disabled = &mut options.testing.disabled_features;
    disabled.no_sqarray = true;
    disabled.defer_taskrun = true;
    disabled.single_issuer = true;
    disabled.coop_taskrun = true;
    disabled.multishot_receive = true;
    disabled.multishot_accept = true;
    disabled.buffer_ring = true;
    disabled.msg_ring = true;
    disabled.registered_ring = true;
    disabled.cqe_skip = true;
    disabled.zero_copy = true;
}

/// Sets every queue and buffer to its minimum size.
pub fn smallest(options: &mut DriverOptions) {
    options.testing.sq_entries = 2;
    options.testing.cq_entries = 4;
    options.testing.initial_receive_buffers = 1;
    options.max_receive_buffers = 2;
    options.receive_buffer_bytes = 64;
    options.max_received_chunks = 1;
    options.max_send_queue_bytes = 100;
    options.max_accept_queue = 1;
}

/// Returns all set-ups on Linux.
pub(crate) fn linux_setups() -> Vec<Setup> {
    let uring = |name, change: fn(&mut DriverOptions)| Setup::new(name, DriverKind::Uring, change);
    let epoll = |name, change: fn(&mut DriverOptions)| Setup::new(name, DriverKind::Epoll, change);
    let mut setups = both_drivers();
    setups.push(uring("uring-min", disable_all));
    setups.extend(fallback_setups().into_iter().map(|(_, setup)| setup));
    setups.extend([
        uring("uring-batched", |options| options.max_batch_delay = Duration::from_micros(100)),
        uring("uring-batched-cooperative", |options| {
            options.max_batch_delay = Duration::from_micros(100);
            options.task_work = TaskWork::Cooperative;
        }),
        uring("uring-cooperative", |options| options.task_work = TaskWork::Cooperative),
        uring("uring-no-direct-sends", |options| options.direct_send_threshold_bytes = usize::MAX),
        uring("uring-direct-sends", |options| options.direct_send_threshold_bytes = 0),
        uring("uring-zero-copy", |options| options.zero_copy = ZeroCopy::Always { threshold_bytes: 1000 }),
        uring("uring-submission-polling", |options| {
            options.submission_polling = Some(SubmissionPolling::default().idle_ms(1));
        }),
        uring("uring-small", smallest),
        uring("uring-small-one-shot", |options| {
            smallest(options);
            options.testing.disabled_features.cqe_skip = true;
            options.testing.disabled_features.multishot_receive = true;
        }),
        uring("uring-spin", |options| options.spin = Duration::from_micros(20)),
        epoll("epoll-small", smallest),
        epoll("epoll-deferred-sends", |options| options.testing.deferred_send_threshold_edges = 0),
        epoll("epoll-no-pwait2", |options| options.testing.disabled_features.epoll_pwait2 = true),
        epoll("epoll-spin", |options| options.spin = Duration::from_micros(20)),
    ]);
    setups
}

/// Returns all set-ups with a simulated kernel.
pub(crate) fn sim_setups() -> Vec<Setup> {
    let seed = 0xa11e_1105;
    let sim = |name, model, change: fn(&mut DriverOptions)| {
        Setup::new(name, DriverKind::Sim(SimOptions::new(seed).model(model)), change)
    };
    vec![
        sim("sim-completion", SimModel::Completion, |_| {}),
        sim("sim-readiness", SimModel::Readiness, |_| {}),
        sim("sim-completion-small", SimModel::Completion, smallest),
        sim("sim-readiness-small", SimModel::Readiness, smallest),
    ]
}

/// Returns all set-ups, whether or not they are selected: on Linux, and the simulated kernels.
pub fn all_setups() -> Vec<Setup> {
    linux_setups().into_iter().chain(sim_setups()).collect()
}

/// Returns the set-up with this name, whether or not it is selected.
///
/// # Panics
///
/// Panics if no set-up has this name.
pub fn setup_named(name: &str) -> Setup {
    let found = all_setups().into_iter().find(|setup| setup.name == name);
    found.unwrap_or_else(|| panic!("no set-up is named {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_need_no_escapes_in_regular_expressions() {
        let setups = all_setups();
        for (index, Setup { name, .. }) in setups.iter().enumerate() {
            assert!(
                name.chars().all(|letter| matches!(letter, 'a'..='z' | '0'..='9' | '-')),
                "{name} has other characters"
            );
            assert!(setups[..index].iter().all(|other| other.name != *name), "{name} is used twice");
        }
        assert!(DEFAULT_NAMES.iter().all(|name| setups.iter().any(|setup| setup.name == *name)));
    }

    #[test]
    fn names_begin_with_the_driver() {
        for Setup { name, kind, .. } in all_setups() {
            let driver = name.split('-').next();
            let expected = match kind {
                DriverKind::Uring => "uring",
                DriverKind::Epoll => "epoll",
                _ => "sim",
            };
            assert_eq!(driver, Some(expected), "{name}");
        }
    }
}
