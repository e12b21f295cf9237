//! A machine on another host, to which the connection is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anello_lab::hosts::{AgentProgram, Greeting, Hosts};
use anello_lab::{Contender, LabConfig, Load, Machine, MachineError};

#[test]
fn every_call_after_lost_connection_returns_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let greeting = serde_json::to_string(&Greeting::of_this_machine("test")).unwrap();
    let agent = directory.path().join("agent");
    // An agent that exits after it has received the configuration. Unlike printf, echo can expand the escapes of JSON.
    let script = format!("#!/bin/sh\nprintf '%s\\n' '{greeting}'\nread setup\necho '\"epoll\"'\n");
    fs::write(&agent, script).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o700)).unwrap();
    let program = AgentProgram { path: &agent, version: "test", copy: false };
    let stop = Arc::new(AtomicBool::new(false));
    let hosts = Hosts::connect(None, None, &program, &stop).unwrap();
    let config = LabConfig::preset("smoke", "/bin/sh".into()).unwrap();
    let (mut machine, mut load, driver) = hosts.set_up(&config, None, "epoll").unwrap();
    assert_eq!(driver, "epoll");
    let contender = Contender::new("shell", "/bin/sh".as_ref(), &[]);
    let results = [
        ("prepare", machine.prepare(&config).err()),
        ("max_open_connections", machine.max_open_connections().err()),
        ("stolen_ns", machine.stolen_ns(&[0]).err()),
        ("throttled_ns", machine.throttled_ns().err()),
        ("usage", machine.usage(1).err()),
        ("load_cpu_ns", machine.load_cpu_ns().err()),
        ("other_cpu_ns", machine.other_cpu_ns(&[0]).err()),
        ("start", machine.start(&contender, &config, &[0]).err()),
        ("exit_description", machine.exit_description(1, Duration::ZERO).err()),
        ("throttle_servers", machine.throttle_servers(&[0], 0.5).err()),
        ("unthrottle_servers", machine.unthrottle_servers().err()),
        ("set_paused", machine.set_paused(1, true).err()),
        ("stop", machine.stop(&[1]).err()),
        ("executables", machine.executables(&[contender]).err()),
        ("environment", machine.environment(&config).err()),
    ];
    for (call, error) in results {
        assert!(
            matches!(&error, Some(MachineError::Lost(text)) if text.starts_with("lost the connection to anello on")),
            "{call}: {error:?}"
        );
    }
    assert!(load.notes().unwrap_err().to_string().starts_with("lost the connection to anello on"));
    assert!(stop.load(Ordering::Relaxed), "the loss ends the run");
    assert!(hosts.lost().is_some());
}
