//! Fallbacks in the io_uring setup: each one works and reports the missing feature. Errors include the cause and a
//! remedy.

use std::io;

use crate::common::echo;
use anello::doctor::probe_uring;
use anello::{DriverKind, DriverOptions, Runtime, SubmissionPolling, TaskWork, spawn};

use crate::common::{
    OwnProcess, all_drivers, can_inject, fallback_setups, is_own_process, is_uring_unavailable,
    on_both_drivers, on_each, pair, within,
};

#[test]
fn each_step_reports_its_missing_feature() {
    let steps = fallback_setups();
    let setups = steps.iter().map(|(_, setup)| setup.clone()).collect();
    on_each(setups, move |setup| {
        let (feature, _) = steps.iter().find(|(_, step)| step.name == setup.name).unwrap();
        let description = setup.runtime().driver();
        assert_eq!((description.name, description.fallback_reason), ("uring", None));
        let used: Vec<_> = description.features.split(',').collect();
        assert!(!used.contains(feature), "{}: {used:?}", setup.name);
        match *feature {
            "single-issuer" => {
                assert!(!used.contains(&"defer-taskrun"), "defer-taskrun needs single-issuer: {used:?}")
            }
            "buffer-ring" => {
                assert!(!used.contains(&"multishot-recv"), "multishot-recv needs buffer-ring: {used:?}")
            }
            "cqe-skip" => {
                assert!(!used.contains(&"send-at-submission"), "send-at-submission needs cqe-skip: {used:?}")
            }
            _ => {}
        }
    });
}

#[test]
fn conflicting_options_are_resolved() {
    on_each(all_drivers().into_iter().filter(crate::common::Setup::is_uring).collect(), |setup| {
        let features = setup.runtime().driver().features;
        let used: Vec<_> = features.split(',').collect();
        let has = |feature: &str| used.contains(&feature);
        if setup.options.submission_polling.is_some() {
            assert!(has("sqpoll") && !has("defer-taskrun") && !has("send-at-submission"), "{used:?}");
        }
        if setup.options.task_work != TaskWork::Deferred {
            assert!(!has("defer-taskrun"), "{used:?}");
        }
        let may_batch = !setup.options.max_batch_delay.is_zero() && has("defer-taskrun");
        assert!(may_batch || !has("min-wait"), "{used:?}");
        let probed = probe_uring(&setup.options).unwrap();
        let named: Vec<_> = probed.into_iter().filter(|(_, used)| *used).map(|(name, _)| name).collect();
        assert_eq!(named.join(","), features);
    });
}

#[test]
fn options_are_clamped_to_range() {
    on_both_drivers(|setup| {
        let setup = setup.with(|options| {
            options.testing.sq_entries = 0;
            options.testing.cq_entries = u32::MAX;
            options.testing.initial_receive_buffers = 0;
            options.max_receive_buffers = 0;
            options.max_accept_queue = 0;
            options.max_received_chunks = 0;
        });
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let echoing = spawn(async move { echo(&mut server).await });
            client.write_all(b"small").await.unwrap();
            let mut answer = [0; 5];
            client.read_exact(&mut answer).await.unwrap();
            drop(client);
            assert_eq!(echoing.await.unwrap().unwrap(), 5);
        });
    });
}

#[test]
fn missing_core_returns_error() {
    let mut options = DriverOptions::default();
    options.submission_polling = Some(SubmissionPolling::default().core(Some(1_000_000)));
    let error = build(DriverKind::Uring, &options).unwrap_err();
    assert!(is_uring_unavailable(&error) || error.to_string().contains("core 1000000"), "{error}");
}

#[test]
fn driver_is_selected_by_name() {
    assert_eq!("auto".parse::<DriverKind>().unwrap(), DriverKind::Auto);
    assert_eq!("io_uring".parse::<DriverKind>().unwrap(), DriverKind::Uring);
    assert_eq!(DriverKind::Epoll.to_string().parse::<DriverKind>().unwrap(), DriverKind::Epoll);
    let error = "kqueue".parse::<DriverKind>().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("kqueue") && error.to_string().contains("epoll"), "{error}");
}

#[test]
fn environment_overrides_driver() {
    OwnProcess::default().variable("ANELLO_DRIVER", "epoll").run(|| {
        let kind = DriverKind::Auto;
        assert_eq!(Runtime::builder().driver(kind.clone()).build().unwrap().driver().name, "epoll");
        let chosen = Runtime::builder().driver(kind).driver_from_environment(false).build().unwrap().driver();
        assert_eq!(chosen.name == "epoll", chosen.fallback_reason.is_some());
    });
}

#[test]
fn error_contains_unknown_driver_in_environment() {
    OwnProcess::default().variable("ANELLO_DRIVER", "iocp").run(|| {
        let error = Runtime::new().unwrap_err();
        assert!(error.to_string().contains("ANELLO_DRIVER") && error.to_string().contains("iocp"), "{error}");
    });
}

fn build(kind: DriverKind, options: &DriverOptions) -> io::Result<Runtime> {
    Runtime::builder().driver(kind).options(options.clone()).driver_from_environment(false).build()
}

/// Expects an error that includes the cause and a remedy if the driver is selected by name. With `auto`, expects a
/// working epoll driver with a fallback reason.
fn expect_setup_refused(part_of_message: &'static str) {
    within(crate::common::hang_timeout(), part_of_message, move || {
        let options = DriverOptions::default();
        let error = build(DriverKind::Uring, &options).unwrap_err();
        assert!(is_uring_unavailable(&error), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(part_of_message) && text.contains("epoll"), "{text}");
        assert!(probe_uring(&options).is_err());
        let runtime = build(DriverKind::Auto, &options).unwrap();
        let description = runtime.driver();
        assert_eq!((description.name, description.fallback_reason), ("epoll", Some(text)));
        runtime.block_on(async {
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"served").await.unwrap();
            let mut answer = [0; 6];
            server.read_exact(&mut answer).await.unwrap();
        });
    });
}

#[test]
fn fault_07_uring_forbidden() {
    if is_own_process() || can_inject() {
        OwnProcess::injecting(&["io_uring_setup:error=EPERM"])
            .run(|| expect_setup_refused("kernel.io_uring_disabled"));
    }
}

#[test]
fn fault_07_uring_unknown() {
    if is_own_process() || can_inject() {
        OwnProcess::injecting(&["io_uring_setup:error=ENOSYS"])
            .run(|| expect_setup_refused("not in the kernel"));
    }
}

#[test]
fn fault_06_no_memory_at_setup() {
    if is_own_process() || can_inject() {
        OwnProcess::injecting(&["io_uring_setup:error=ENOMEM"]).run(|| expect_setup_refused("locked-memory"));
    }
}

#[test]
fn fault_07_setup_flags_unsupported_by_kernel() {
    if is_own_process() || can_inject() {
        // The setup fails at every fallback step, including the last one.
        OwnProcess::injecting(&["io_uring_setup:error=EINVAL"]).run(|| expect_setup_refused("too old"));
    }
}

#[test]
fn fault_07_registration_forbidden() {
    if is_own_process() || can_inject() {
        OwnProcess::injecting(&["io_uring_register:error=EINVAL"]).run(|| {
            if let Err(error) = build(DriverKind::Uring, &DriverOptions::default()) {
                assert!(is_uring_unavailable(&error));
                return eprintln!("skipped: {error}");
            }
            // Even without a buffer ring, a probe or a registered ring, the driver can serve clients.
            each_setup_serves();
        });
    }
}

fn each_setup_serves() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let echoing = spawn(async move { echo(&mut server).await });
            crate::common::exchange(&mut client, &crate::common::pattern(1, 100_000)).await;
            drop(client);
            echoing.await.unwrap().unwrap();
        });
    });
}
