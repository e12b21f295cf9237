//! Tests of the echo server options and names.

use std::io;
use std::time::Duration;

use anello_bare::{Model, Options, TaskWork, UringOptions, check, listen, parse_core};
use clap::ValueEnum;

#[test]
fn model_names_round_trip() {
    for model in Model::value_variants() {
        assert_eq!(Model::from_str(&model.to_string(), false), Ok(*model));
    }
    assert!(Model::from_str("kqueue", false).is_err());
}

#[test]
fn check_rejects_options_of_another_model() {
    let spin = Options { spin: Duration::from_micros(1), ..Options::default() };
    let uring = Options { uring: Some(UringOptions::default()), ..Options::default() };
    check(Model::Epoll, &spin).unwrap();
    for (model, options) in [(Model::Poll, &spin), (Model::Uring, &spin), (Model::Epoll, &uring)] {
        let error = check(model, options).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{model}: {error}");
    }
}

#[test]
fn accepted_sockets_inherit_nodelay() {
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(listener.accept().unwrap().0.nodelay().unwrap());
}

#[test]
fn validate_conflicting_options_reports_cause() {
    let idle = Some(Duration::from_secs(1));
    let default = UringOptions::default;
    let invalid = [
        (UringOptions { sqpoll: idle, task_work: Some(TaskWork::Deferred), ..default() }, "DEFER_TASKRUN"),
        (UringOptions { sqpoll_core: Some(0), ..default() }, "--sqpoll"),
        (UringOptions { sqpoll: Some(Duration::ZERO), ..default() }, "milliseconds"),
        (
            UringOptions { bundles: true, per_connection_buffers: true, ..default() },
            "--per-connection-buffers",
        ),
        (UringOptions { bundles: true, sqpoll: idle, ..default() }, "order"),
        (UringOptions { bundles: true, forced_async: true, ..default() }, "order"),
        (UringOptions { completion_per_send: true, zero_copy_sends: true, ..default() }, "--zero-copy-sends"),
        (UringOptions { linked_timeout: Some(Duration::ZERO), ..default() }, "--linked-timeout"),
        (UringOptions { rings: 0, ..default() }, "--rings"),
        (UringOptions { shared_workers: true, ..default() }, "--rings 2"),
    ];
    for (options, part) in invalid {
        let error = options.validate().expect_err(part);
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(part), "{error}");
    }
    default().validate().expect("the default is valid");
}

#[test]
fn display_lists_options_in_effect() {
    let default = UringOptions::default;
    let spin = Duration::from_secs(1);
    let second = Some(spin);
    for (options, text) in [
        (
            UringOptions { linked_timeout: second, ..default() },
            "deferred,one-shot-receive,buffer-ring,sends-at-submission,linked-timeout=1000ms,rings=1",
        ),
        (
            UringOptions { sqpoll: second, sqpoll_core: Some(2), bundles: true, rings: 2, ..default() },
            "sqpoll=1000ms,sqpoll-core=2,multishot-receive,buffer-ring,completion-per-send,bundles,rings=2",
        ),
        (
            UringOptions { per_connection_buffers: true, zero_copy_sends: true, spin, ..default() },
            "deferred,one-shot-receive,own-buffers,zero-copy-sends,spin=1000000us,rings=1",
        ),
    ] {
        assert_eq!(options.to_string(), text);
    }
}

#[test]
fn last_core_is_in_affinity_mask() {
    assert_eq!(parse_core("3"), Ok(3));
    assert!(parse_core("first").is_err());
    let last = parse_core("last").unwrap();
    assert!(rustix::thread::sched_getaffinity(None).unwrap().is_set(last as usize));
}
