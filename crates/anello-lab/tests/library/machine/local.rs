//! The machine on which the tests are running.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anello_lab::machine::{allowed_cores, core_siblings};
use anello_lab::tls::Identity;
use anello_lab::{Contender, LabConfig, LocalMachine, Machine, MachineError, Target};

#[test]
fn local_machine_reads_its_own_usage() {
    let mut machine = LocalMachine::new(None);
    let before = machine.usage(std::process::id()).unwrap();
    assert!(before.voluntary_switches.is_some() && before.resident_bytes.is_some(), "{before:?}");
    let mut sink = 0u64;
    while machine.usage(std::process::id()).unwrap().cpu_ns <= before.cpu_ns {
        sink = std::hint::black_box(sink + 1);
    }
    assert!(machine.stolen_ns(&allowed_cores()).unwrap().is_some());
    assert!(machine.other_cpu_ns(&allowed_cores()).unwrap().is_some());
    assert!(machine.usage(u32::MAX).unwrap_err().to_string().contains("cannot read"));
    assert!(machine.exit_description(u32::MAX, Duration::ZERO).unwrap().is_some());
    machine.stop(&[u32::MAX]).unwrap();
}

#[test]
fn dropping_machine_terminates_pinned_contender() {
    let config = LabConfig::preset("smoke", "/bin/sh".into()).unwrap();
    let script = "sleep 60 & echo addr=127.0.0.1:9; wait";
    let contender = Contender::new("shell", Path::new("/bin/sh"), &["-c", script]);
    let mut machine = LocalMachine::new(None);
    let running = machine.start(&contender, &config, &config.cores.server[..1]).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", running.pid)).unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    assert_eq!(allowed.trim(), config.cores.server[0].to_string());
    assert_eq!(machine.exit_description(running.pid, Duration::ZERO).unwrap(), None);
    drop(machine);
    assert!(!Path::new(&format!("/proc/{}", running.pid)).exists());
}

#[test]
fn contenders_share_site_until_machine_is_dropped() {
    let config = LabConfig::preset("smoke", "/bin/sh".into()).unwrap();
    let script = "test -s $0/page.html && echo addr=127.0.0.1:9 root=$0; exec sleep 60";
    let contender = Contender::new("shell", Path::new("/bin/sh"), &["-c", script, "{root}"]);
    let mut machine = LocalMachine::new(None);
    let mut root = || {
        let running = machine.start(&contender, &config, &config.cores.server[..1]).unwrap();
        running.ready_line.split_once("root=").unwrap().1.to_owned()
    };
    let first = root();
    assert_eq!(root(), first, "the site differs between contenders");
    let directory = Path::new(&first);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory), 0o755);
    let files: Vec<Target> = Target::ALL.into_iter().filter(|target| !target.is_route()).collect();
    assert_eq!(fs::read_dir(directory).unwrap().count(), files.len());
    for target in files {
        let path = directory.join(target.path().trim_start_matches('/'));
        assert!(fs::read(&path).unwrap() == target.body(), "{target}");
        assert_eq!(mode(&path), 0o644);
        assert!(fs::metadata(&path).unwrap().modified().unwrap() < SystemTime::now());
    }
    drop(machine);
    assert!(!directory.exists(), "{first}");
}

#[test]
fn tls_contender_receives_paths_of_certificate_and_key() {
    let config = LabConfig::preset("smoke", "/bin/sh".into()).unwrap();
    let script = "echo addr=127.0.0.1:9 $0; exec sleep 60";
    let contender =
        Contender::new("shell", Path::new("/bin/sh"), &["-c", script, "--pair={certificate}:{key}"]);
    let cores = &config.cores.server[..1];
    let error = LocalMachine::new(None).start(&contender, &config, cores).unwrap_err();
    assert!(matches!(error, MachineError::NoIdentity), "{error}");
    let identity = Identity::make().unwrap();
    let pair = format!("--pair={}:{}", identity.certificate().display(), identity.key().display());
    let running = LocalMachine::new(Some(identity)).start(&contender, &config, cores).unwrap();
    assert!(running.ready_line.ends_with(&pair), "{}", running.ready_line);
}

#[test]
fn throttle_fails_if_a_core_is_invalid() {
    assert!(LocalMachine::new(None).throttle_servers(&[allowed_cores()[0], 100_000], 0.5).is_err());
}

#[test]
fn core_siblings_default_to_core_itself() {
    let root = tempfile::tempdir().unwrap();
    for (core, list) in [(0, "0,2\n"), (1, "1-2,8\n"), (2, "what?\n")] {
        let directory = root.path().join(format!("sys/devices/system/cpu/cpu{core}/topology"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("thread_siblings_list"), list).unwrap();
    }
    let siblings = core_siblings(root.path(), &[0, 1, 2, 3]);
    assert_eq!(siblings, [vec![0, 2], vec![1, 2, 8], vec![2], vec![3]]);
}
