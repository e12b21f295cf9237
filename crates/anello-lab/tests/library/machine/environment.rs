//! Facts about the machine, read from a file tree.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anello_lab::Environment;

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn captures_facts_from_file_tree() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    for (path, text) in [
        ("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU 9000\nflags\t\t: fpu hypervisor sse\n"),
        ("proc/stat", "cpu  1 2 3 4 5 6 7 42 0 0\ncpu0 1 2\ncpu1 1 2\nctxt 9\n"),
        ("proc/self/status", "Cpus_allowed_list:\t0-1\nSeccomp:\t2\n"),
        (
            "proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  524288  files\nMax locked memory  8388608  unlimited  bytes\nMax processes  63000  63000  processes\n",
        ),
        ("proc/loadavg", "0.50 0.25 0.10 1/100 4242\n"),
        ("proc/meminfo", "MemTotal:        2097152 kB\n"),
        ("proc/sys/kernel/osrelease", "6.18.0\n"),
        ("proc/sys/kernel/io_uring_disabled", "2\n"),
        ("proc/sys/net/core/somaxconn", "4096\n"),
        ("proc/sys/net/ipv4/tcp_congestion_control", "cubic\n"),
        ("proc/1/cgroup", "0::/kubepods/burstable/x\n"),
        ("proc/self/cgroup", "0::/x\n"),
        ("sys/fs/cgroup/x/cpu.max", "150000 100000\n"),
        ("sys/devices/system/cpu/smt/control", "on\n"),
        ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,1\n"),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        ("proc/sys/kernel/io_uring_group", "-1\n"),
        ("proc/sys/net/core/rmem_max", "212992\n"),
        ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
        ("proc/sys/fs/aio-max-nr", "65536\n"),
        ("sys/devices/system/cpu/vulnerabilities/meltdown", "Mitigation: PTI\n"),
        ("sys/devices/system/cpu/vulnerabilities/l1tf", "Not affected\n"),
        ("sys/devices/system/cpu/vulnerabilities/mds", "Vulnerable\n"),
        ("proc/cmdline", "quiet mitigations=auto,nosmt\n"),
        ("proc/self/mountinfo", "1 0 8:0 / / rw - ext4 /dev/sda rw\n"),
    ] {
        write(root, path, text);
    }
    let environment = Environment::capture(root, &[0, 1], Some(Path::new("/no-such/file")));
    assert_eq!(environment.kernel, "Linux 6.18.0");
    assert_eq!(environment.cpu_model, "Fast CPU 9000");
    assert!(environment.virtual_machine);
    assert_eq!((environment.cores_online, environment.cores_allowed.as_str()), (2, "0-1"));
    assert_eq!(environment.stolen_ticks, Some(42));
    assert_eq!(environment.load_average, Some([0.5, 0.25, 0.1]));
    assert_eq!(environment.memory_kib, Some(2_097_152));
    assert_eq!(environment.open_files.as_deref(), Some("1024, 524288"));
    assert_eq!(environment.locked_memory.as_deref(), Some("8388608, unlimited"));
    assert_eq!(environment.processes.as_deref(), Some("63000, 63000"));
    assert_eq!(environment.mitigations, ["meltdown: PTI"]);
    assert_eq!(environment.vulnerable, Some(vec!["mds: Vulnerable".to_owned()]));
    let names: Vec<&str> = environment.sysctls.keys().map(String::as_str).collect();
    assert_eq!(names, ["fs.aio-max-nr", "net.core.rmem_max", "net.ipv4.ip_local_port_range"]);
    assert_eq!(environment.container.as_deref(), Some("kubepods (cgroup of process 1)"));
    assert_eq!(environment.seccomp.as_deref(), Some("filter"));
    assert_eq!(environment.io_uring_disabled, Some(2));
    let facts = environment.facts();
    assert!(facts.contains(&("io_uring sysctl", "2 (forbidden)".to_owned())));
    assert!(facts.contains(&("Memory", "2.0 GiB".to_owned())));
    assert!(facts.contains(&("SMT", "on; hardware threads of core 0: 0,1".to_owned())));
    assert!(facts.contains(&("CPU limit of the control group", "150000 of 100000 us".to_owned())));
    assert!(facts.contains(&("Clock boost", "off".to_owned())));
    assert!(facts.contains(&("Transparent huge pages", "madvise".to_owned())));
    assert!(facts.contains(&("net.ipv4.ip_local_port_range", "32768 60999".to_owned())));
    assert!(!facts.iter().any(|(label, _)| *label == "net.core.wmem_max"), "unreadable sysctl is omitted");
    assert!(facts.contains(&("Unmitigated CPU vulnerabilities", "mds: Vulnerable".to_owned())));
    assert!(facts.contains(&("Boot parameter mitigations=", "auto,nosmt".to_owned())));
    let disk = "ext4 on no known device, I/O scheduler unknown";
    assert!(facts.contains(&("Disk file", disk.to_owned())));
    assert_eq!(environment.tcp_receive_buffer.as_deref(), Some("4096 131072 6291456"));
    assert!(!facts.iter().any(|(label, _)| *label == "io_uring group"), "-1 means no group");
}

#[test]
fn different_governors_are_listed_with_their_cores() {
    let root = tempfile::tempdir().unwrap();
    let governor = |cores: &[usize]| Environment::capture(root.path(), cores, None).governor;
    for (core, word) in [(0, "performance"), (1, "performance"), (2, "powersave")] {
        write(
            root.path(),
            &format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"),
            &format!("{word}\n"),
        );
    }
    assert_eq!(governor(&[0, 1]).as_deref(), Some("performance"));
    assert_eq!(governor(&[2]).as_deref(), Some("powersave"), "governor of core 2, not of core 0");
    let several = "performance on cores 0, 1; powersave on core 2; not visible on core 3";
    assert_eq!(governor(&[0, 1, 2, 3]).as_deref(), Some(several));
    assert_eq!((governor(&[3]), governor(&[])), (None, None));
}

#[test]
fn reads_older_results_without_newer_fields() {
    let root = tempfile::tempdir().unwrap();
    let mut old = serde_json::to_value(Environment::capture(root.path(), &[], None)).unwrap();
    for field in ["vulnerable", "mitigations_at_boot", "processes", "sysctls", "disk"] {
        old.as_object_mut().unwrap().remove(field).expect(field);
    }
    let environment: Environment = serde_json::from_value(old).unwrap();
    assert_eq!((environment.vulnerable.as_ref(), environment.processes.as_ref()), (None, None));
    assert!(!environment.facts().iter().any(|(label, _)| *label == "Unmitigated CPU vulnerabilities"));
}

#[test]
fn empty_file_tree_yields_no_facts() {
    let root = tempfile::tempdir().unwrap();
    let environment = Environment::capture(root.path(), &[0], Some(Path::new("/no-such/file")));
    assert_eq!(environment.governor, None);
    assert_eq!((environment.vulnerable.clone(), environment.disk.clone()), (None, None));
    assert!(environment.sysctls.is_empty());
    assert_eq!(environment.stolen_ticks, None);
    assert_eq!(environment.kernel, "Linux unknown");
    assert!(!environment.facts().is_empty());
}

const MOUNTS: &str = "\
    22 1 8:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
    23 22 0:21 / /no-such/memory rw - tmpfs tmpfs rw\n\
    24 22 8:16 / /no-such/data rw,noatime - ext4 /dev/sdb rw\n\
    25 24 8:17 / /no-such/data/fast\\040disk rw - xfs /dev/sdb1 rw\n\
    26 22 0:40 /home /no-such/many rw - btrfs /dev/mapper/pool rw\n\
    27 22 0:50 / /no-such/far rw - nfs4 host.example:/export rw\n\
    28 22 0:51 / /no-such/twice rw - ext4 /dev/sdb rw\n\
    29 28 0:52 / /no-such/twice rw - tmpfs tmpfs rw\n";

/// Creates the file tree of a machine with two disks, a partition and a device mapper device.
fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| write(root.path(), path, text);
    write("proc/self/mountinfo", MOUNTS);
    write("sys/devices/one/uevent", "MAJOR=8\nDEVNAME=sda\nDEVTYPE=disk\n");
    write("sys/devices/two/uevent", "DEVNAME=sdb\n");
    write("sys/devices/two/queue/scheduler", "none [mq-deadline] kyber\n");
    write("sys/devices/two/sdb1/uevent", "DEVNAME=sdb1\n");
    write("sys/class/block/dm-3/uevent", "DEVNAME=dm-3\n");
    write("sys/class/block/dm-3/queue/scheduler", "none\n");
    let link = |from: &str, to: &str| {
        let from = root.path().join(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(to, from).unwrap();
    };
    link("sys/dev/block/8:0", "../../devices/one");
    link("sys/dev/block/8:16", "../../devices/two");
    link("sys/dev/block/8:17", "../../devices/two/sdb1");
    link("dev/mapper/pool", "../dm-3");
    root
}

fn describe(file: &str) -> String {
    let root = machine();
    Environment::capture(root.path(), &[], Some(Path::new(file))).disk.unwrap().to_string()
}

#[test]
fn file_belongs_to_innermost_mount() {
    assert_eq!(describe("/no-such/file"), "ext4 on sda, I/O scheduler unknown");
    assert_eq!(describe("/no-such/data/file"), "ext4 on sdb, I/O scheduler mq-deadline");
    assert_eq!(describe("/no-such/database/file"), "ext4 on sda, I/O scheduler unknown");
    assert_eq!(describe("/no-such/twice/file"), "tmpfs on no known device, I/O scheduler unknown");
}

#[test]
fn partition_reports_scheduler_of_its_disk() {
    assert_eq!(describe("/no-such/data/fast disk/file"), "xfs on sdb1, I/O scheduler mq-deadline");
}

#[test]
fn finds_device_by_name_if_device_number_is_unknown() {
    assert_eq!(describe("/no-such/many/file"), "btrfs on dm-3, I/O scheduler none");
}

#[test]
fn file_system_without_device_reports_no_device_and_no_host() {
    assert_eq!(describe("/no-such/memory/file"), "tmpfs on no known device, I/O scheduler unknown");
    assert_eq!(describe("/no-such/far/file"), "nfs4 on no known device, I/O scheduler unknown");
    let nothing = tempfile::tempdir().unwrap();
    let file = Some(Path::new("/no-such/file"));
    assert_eq!(Environment::capture(nothing.path(), &[], file).disk, None);
}

const DIRECTORY: &str = "sys/devices/system/cpu/vulnerabilities";

#[test]
fn separates_mitigated_unmitigated_and_unaffected() {
    let root = tempfile::tempdir().unwrap();
    let capture = || Environment::capture(root.path(), &[], None);
    assert_eq!(capture().vulnerable, None, "kernel does not report vulnerabilities");
    for (name, line) in [
        ("spectre_v2", "Mitigation: Retpolines; STIBP: disabled"),
        ("taa", "Mitigation: Clear CPU buffers; SMT vulnerable"),
        ("l1tf", "Mitigation: PTE Inversion; VMX: conditional cache flushes, SMT vulnerable"),
        ("spectre_v1", "Mitigation: Enhanced IBRS; PBRSB-eIBRS: Vulnerable; BHI: Vulnerable"),
        ("mds", "Vulnerable: Clear CPU buffers attempted, no microcode; SMT vulnerable"),
        ("meltdown", "Vulnerable"),
        ("itlb_multihit", "KVM: Mitigation: VMX disabled"),
        ("tsx", "KVM: Vulnerable"),
        ("srbds", "Unknown: Dependent on hypervisor status"),
        ("retbleed", "Not affected"),
    ] {
        write(root.path(), &format!("{DIRECTORY}/{name}"), &format!("{line}\n"));
    }
    let environment = capture();
    let mitigated = [
        "itlb_multihit: VMX disabled",
        "l1tf: PTE Inversion",
        "spectre_v1: Enhanced IBRS",
        "spectre_v2: Retpolines",
        "taa: Clear CPU buffers",
    ];
    assert_eq!(environment.mitigations, mitigated);
    let open = [
        "l1tf: SMT vulnerable",
        "mds: Vulnerable: Clear CPU buffers attempted, no microcode",
        "meltdown: Vulnerable",
        "spectre_v1: PBRSB-eIBRS: Vulnerable, BHI: Vulnerable",
        "srbds: Unknown: Dependent on hypervisor status",
        "taa: SMT vulnerable",
        "tsx: KVM: Vulnerable",
    ];
    assert_eq!(environment.vulnerable.unwrap(), open);
}

#[test]
fn last_boot_parameter_wins() {
    let root = tempfile::tempdir().unwrap();
    let capture = || Environment::capture(root.path(), &[], None);
    assert_eq!(capture().mitigations_at_boot, None);
    for (line, expected) in [
        ("quiet nomitigations=off\n", None),
        ("mitigations=off quiet\n", Some("off")),
        ("mitigations=off mitigations=auto,nosmt -- mitigations=off\n", Some("auto,nosmt")),
    ] {
        write(root.path(), "proc/cmdline", line);
        assert_eq!(capture().mitigations_at_boot.as_deref(), expected, "{line}");
    }
}

#[test]
fn disk_of_missing_file_is_that_of_its_resolved_directory() {
    let root = tempfile::tempdir().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let real = fs::canonicalize(directory.path()).unwrap();
    fs::create_dir(real.join("real")).unwrap();
    fs::write(real.join("real/there"), "").unwrap();
    symlink("real", real.join("link")).unwrap();
    let mounts = [
        "1 0 8:0 / / rw - ext4 /dev/sda rw\n".to_owned(),
        format!("2 1 8:1 / {}/real rw - xfs /dev/sdb rw\n", real.display()),
        "3 1 8:2 / /a\\040b\\134c\\9 rw - btrfs /dev/sdc rw\n".to_owned(),
    ];
    write(root.path(), "proc/self/mountinfo", &mounts.concat());
    let file_system =
        |file: &Path| Environment::capture(root.path(), &[0], Some(file)).disk.unwrap().file_system;
    assert_eq!(file_system(&directory.path().join("link/absent")), "xfs");
    assert_eq!(file_system(&directory.path().join("link/there")), "xfs");
    assert_eq!(file_system(&directory.path().join("absent")), "ext4");
    assert_eq!(file_system(Path::new(r"/a b\c\9/file")), "btrfs");
}
