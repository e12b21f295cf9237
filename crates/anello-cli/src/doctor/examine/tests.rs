//! Tests for the evaluation, with facts about hypothetical hosts.

use super::*;
use crate::doctor::facts::{Chosen, Epoll, Limit, Node, Queue, Uring};

fn healthy() -> Facts {
    let features = KNOWN
        .iter()
        .map(|known| Feature { name: known.name.to_owned(), used: !known.option, available: true })
        .collect();
    let plenty = Limit { soft: Some(1 << 20), hard: Some(1 << 20) };
    Facts {
        kernel_release: "6.12.30-cloud-amd64".to_owned(),
        architecture: "x86_64".to_owned(),
        restrictions: Restrictions {
            io_uring_disabled: Some(0),
            seccomp_mode: Some(0),
            ..Default::default()
        },
        limits: Limits { open_files: plenty, locked_memory_bytes: Limit { soft: Some(8 << 20), hard: None } },
        network: Network {
            somaxconn: Some(4096),
            congestion_control: Some("cubic".to_owned()),
            receive_memory_bytes: Some([4096, 131_072, 6 << 20]),
            send_memory_bytes: Some([4096, 16_384, 4 << 20]),
        },
        processor: Processor {
            allowed_cores: vec![0, 1, 2, 3],
            smt_active: Some(false),
            governor: Some("performance".to_owned()),
            cgroup_cpus: None,
        },
        topology: Topology {
            nodes: [(0, vec![0, 1]), (1, vec![2, 3])].map(|(number, cores)| Node { number, cores }).to_vec(),
            caches: vec![vec![0, 1], vec![2, 3]],
            physical_cores: (0..4).map(|core| vec![core]).collect(),
            worker_cores: vec![0, 1, 2, 3],
            hypervisor: Some(false),
        },
        interfaces: vec![interface(&[0, 1, 2, 3])],
        irqbalance: Some(false),
        uring: Uring { features, refusal: None },
        epoll: Epoll::default(),
        choice: Choice { auto: Some(chosen("uring", None)), ..Default::default() },
    }
}

/// Returns an interface with a receive queue for each of the cores, which handles its interrupt.
fn interface(cores: &[usize]) -> Interface {
    let interrupt = |(queue, core): (usize, &usize)| Interrupt {
        number: 30 + queue as u32,
        name: format!("eth0-TxRx-{queue}"),
        cores: Some(vec![*core]),
    };
    let queue = |number| Queue { number, cores: Some(vec![]) };
    Interface {
        name: "eth0".to_owned(),
        driver: Some("ixgbe".to_owned()),
        node: Some(0),
        receive_queues: (0..cores.len()).map(queue).collect(),
        transmit_queues: Vec::new(),
        interrupts: cores.iter().enumerate().map(interrupt).collect(),
    }
}

/// Returns the facts about a host on which io_uring is unavailable.
fn without_uring(cause: Cause, error: &str) -> Facts {
    Facts {
        uring: Uring { features: Vec::new(), refusal: Some(Refusal { cause, error: error.to_owned() }) },
        choice: Choice { auto: Some(chosen("epoll", Some(error))), ..Default::default() },
        ..healthy()
    }
}

fn chosen(driver: &str, reason: Option<&str>) -> Chosen {
    Chosen { driver: driver.to_owned(), features: String::new(), reason: reason.map(str::to_owned) }
}

/// Returns the text and commands of all advice.
fn advice(diagnosis: &Diagnosis) -> String {
    let texts =
        diagnosis.advice.iter().map(|advice| format!("{}\n{}\n", advice.text, advice.commands.join("\n")));
    texts.collect()
}

fn mark(diagnosis: &Diagnosis, topic: &str) -> CheckStatus {
    let mut checks = diagnosis.sections.iter().flat_map(|section| &section.checks);
    checks.find(|check| check.topic == topic).unwrap_or_else(|| panic!("no check of {topic}")).mark
}

#[test]
fn healthy_host_gets_no_advice() {
    let diagnosis = examine(&healthy());
    assert!(diagnosis.works);
    assert_eq!(advice(&diagnosis), "");
    let mut checks = diagnosis.sections.iter().flat_map(|section| &section.checks);
    assert!(checks.all(|check| check.mark != Attention));
    assert!(diagnosis.verdict[0].starts_with("auto selects io_uring"), "{:?}", diagnosis.verdict);
}

#[test]
fn fault_07_refused_io_uring_gets_advice_for_its_cause() {
    // Each case lists the cause, the seccomp mode, the value of kernel.io_uring_disabled, the kernel release, and part
    // of the expected advice.
    for (cause, seccomp_mode, disabled, kernel, expected) in [
        (Cause::Forbidden, 2, 0, "6.12.30", "--security-opt seccomp="),
        // An additional seccomp filter does not change the advice, because the sysctl alone forbids io_uring.
        (Cause::Forbidden, 2, 2, "6.12.30", "sysctl -w kernel.io_uring_disabled=0"),
        (Cause::Forbidden, 2, 1, "6.12.30", "kernel.io_uring_group"),
        (Cause::Forbidden, 0, 0, "6.12.30", "security module"),
        (Cause::Missing, 0, 0, "6.12.30", "CONFIG_IO_URING"),
        (Cause::Missing, 2, 0, "6.12.30", "seccomp profile"),
        (Cause::Missing, 2, 0, "5.10.0-21-amd64", "Linux 5.13"),
    ] {
        let mut facts = without_uring(cause, "refused");
        facts.kernel_release = kernel.to_owned();
        facts.restrictions.seccomp_mode = Some(seccomp_mode);
        facts.restrictions.io_uring_disabled = Some(disabled);
        facts.restrictions.container = Some("docker (/.dockerenv)".to_owned());
        let diagnosis = examine(&facts);
        assert!(diagnosis.works, "epoll works");
        assert!(advice(&diagnosis).contains(expected), "{expected}: {}", advice(&diagnosis));
        assert!(diagnosis.verdict[0].starts_with("auto selects epoll"), "{:?}", diagnosis.verdict);
        let release = if kernel.starts_with("5.10") { Attention } else { CheckStatus::Ok };
        assert_eq!((mark(&diagnosis, "setup"), mark(&diagnosis, "release")), (Attention, release));
    }
    let mut facts = without_uring(Cause::Missing, "refused");
    facts.restrictions.seccomp_mode = Some(2);
    assert!(advice(&examine(&facts)).contains("A seccomp filter forbids"), "outside a container");
}

#[test]
fn fault_06_out_of_memory_advises_limits() {
    let mut facts = without_uring(Cause::Memory, "no memory");
    facts.kernel_release = "5.10.0".to_owned();
    facts.limits.locked_memory_bytes = Limit { soft: Some(64 << 10), hard: Some(64 << 10) };
    let diagnosis = examine(&facts);
    assert!(advice(&diagnosis).contains("ulimit -l"));
    assert_eq!(mark(&diagnosis, "locked memory"), Attention);
}

#[test]
fn old_kernel_gets_advice_to_upgrade() {
    let mut facts = healthy();
    facts.kernel_release = "5.15.0-119-generic".to_owned();
    for feature in &mut facts.uring.features {
        let known = KNOWN.iter().find(|known| known.name == feature.name).unwrap();
        feature.used &= known.since <= (5, 15);
    }
    let diagnosis = examine(&facts);
    assert!(advice(&diagnosis).contains("Linux 6.6 or later"), "{}", advice(&diagnosis));
    assert_eq!(mark(&diagnosis, "defer-taskrun"), Attention);
    assert_eq!(mark(&diagnosis, "sqpoll"), Note, "a disabled option is not a problem");
}

#[test]
fn options_report_whether_the_kernel_accepts_them() {
    let mut facts = healthy();
    let sqpoll = facts.uring.features.iter_mut().find(|feature| feature.name == "sqpoll").unwrap();
    sqpoll.available = false;
    facts.kernel_release = "6.18.0".to_owned();
    let diagnosis = examine(&facts);
    let checks: Vec<&Check> = diagnosis.sections.iter().flat_map(|section| &section.checks).collect();
    let check = |topic| *checks.iter().find(|check| check.topic == topic).unwrap();
    assert!(check("sqpoll").note.starts_with("option, not available: "));
    assert!(check("min-wait").note.starts_with("option, off: "));
    assert_eq!(advice(&diagnosis), "");
}

#[test]
fn failed_probe_on_new_kernel_is_reported() {
    let mut facts = healthy();
    facts.uring.features.iter_mut().find(|feature| feature.name == "buffer-ring").unwrap().used = false;
    let advice = advice(&examine(&facts));
    assert!(advice.contains("should have buffer-ring") && !advice.contains("Upgrade the kernel"), "{advice}");
}

#[test]
fn advice_for_small_limits_has_commands() {
    let mut facts = healthy();
    facts.limits.open_files = Limit { soft: Some(1024), hard: Some(524_288) };
    facts.network.somaxconn = Some(128);
    facts.network.receive_memory_bytes = Some([4096, 87_380, 212_992]);
    facts.processor.cgroup_cpus = Some(1.5);
    let diagnosis = examine(&facts);
    let advice = advice(&diagnosis);
    let commands =
        ["ulimit -n 524288", "net.core.somaxconn=4096", "net.ipv4.tcp_rmem='4096 87380", "--cores 0\n"];
    assert!(commands.iter().all(|command| advice.contains(command)), "{advice}");
    for topic in ["open files", "somaxconn", "receive buffer", "cgroup limit"] {
        assert_eq!(mark(&diagnosis, topic), Attention, "{topic}");
    }
    facts.limits.open_files = Limit { soft: Some(1024), hard: Some(1024) };
    assert!(self::advice(&examine(&facts)).contains("only about 1024 connections"));
}

#[test]
fn interrupts_away_from_workers_get_commands() {
    let mut facts = healthy();
    facts.interfaces = vec![interface(&[3, 2, 1, 0])];
    facts.irqbalance = Some(true);
    let diagnosis = examine(&facts);
    assert_eq!(mark(&diagnosis, "interrupts eth0"), Note);
    let expected = "set -- 0 1 2 3; for irq in 30 31 32 33; do echo $1 > /proc/irq/$irq/smp_affinity_list";
    let text = advice(&diagnosis);
    assert!(text.contains(expected) && text.contains("irqbalance") && !text.contains("ethtool"), "{text}");

    facts.interfaces = vec![interface(&[0, 1])];
    facts.irqbalance = Some(false);
    let text = advice(&examine(&facts));
    assert!(text.contains("ethtool -L eth0 combined 4") && !text.contains("irqbalance"), "{text}");
    assert!(!text.contains("set --"), "queues are on the cores of their workers: {text}");

    facts.interfaces = vec![interface(&[2])];
    let text = advice(&examine(&facts));
    assert!(
        text.contains("core 2 processes all") && text.contains("echo f > /sys/class/net/eth0/queues/rx-0"),
        "{text}"
    );
    facts.interfaces[0].receive_queues[0].cores = Some(vec![0, 1, 2, 3]);
    let text = advice(&examine(&facts));
    assert!(!text.contains("rps_cpus"), "already set: {text}");
    facts.topology.worker_cores = vec![0];
    assert_eq!(advice(&examine(&facts)), "", "one worker");
}

#[test]
fn topology_names_what_cannot_be_checked() {
    let note = |facts: &Facts, topic: &str| {
        let diagnosis = examine(facts);
        let mut checks = diagnosis.sections.iter().flat_map(|section| &section.checks);
        checks.find(|check| check.topic == topic).map(|check| format!("{}: {}", check.value, check.note))
    };
    let mut facts = healthy();
    assert_eq!(note(&facts, "real hardware"), None);
    assert!(
        note(&facts, "cores of workers")
            .unwrap()
            .starts_with("0-3: order of --cores all; N workers: the first N")
    );
    facts.topology.hypervisor = Some(true);
    assert!(note(&facts, "real hardware").unwrap().contains("cannot be checked here: a hypervisor"));
    facts.topology.physical_cores = vec![vec![0, 1], vec![2, 3]];
    facts.topology.worker_cores = vec![0, 2, 1, 3];
    assert!(note(&facts, "cores of workers").unwrap().contains("from worker 2 on, SMT siblings"));
    facts.irqbalance = None;
    assert!(note(&facts, "irqbalance").unwrap().contains("processes of the host are not visible"));
    facts.interfaces[0].interrupts[1].cores = None;
    assert!(note(&facts, "interrupts eth0").unwrap().contains("/proc/irq is not readable"));
    facts.interfaces[0].interrupts[1].name = "eth0-blk".to_owned();
    assert!(note(&facts, "interrupts eth0").unwrap().contains("driver ixgbe does not name"));
    facts.interfaces[0].interrupts.clear();
    assert!(note(&facts, "interrupts eth0").unwrap().contains("/proc/interrupts has none"));
    facts.interfaces.clear();
    assert!(note(&facts, "interrupts").unwrap().contains("no network device is visible"));
    facts.topology = Topology::default();
    assert!(note(&facts, "NUMA nodes").unwrap().starts_with("unknown"));
}

#[test]
fn environment_override_is_reported() {
    let mut facts = healthy();
    facts.choice.environment = Some("epoll".to_owned());
    facts.choice.overridden = Some(Ok(chosen("epoll", None)));
    assert!(examine(&facts).verdict[1].contains("ANELLO_DRIVER=epoll overrides"));
    facts.choice.overridden = Some(Err("unknown driver".to_owned()));
    let diagnosis = examine(&facts);
    assert!(diagnosis.works && advice(&diagnosis).contains("unset ANELLO_DRIVER"));
}

#[test]
fn host_without_working_driver_is_reported() {
    let mut facts = without_uring(Cause::Other, "no descriptors left");
    facts.epoll.error = Some("no descriptors left".to_owned());
    facts.choice.auto = None;
    let diagnosis = examine(&facts);
    assert!(!diagnosis.works);
    assert_eq!(diagnosis.verdict[0], "No driver works on this host.");
}

#[test]
fn parses_versions_and_formats_sizes() {
    let versions = ["6.1.0-13-amd64", "5.15-rc3", "unknown"].map(version);
    assert_eq!(versions, [Some((6, 1)), Some((5, 15)), None]);
    let sizes = [None, Some(512), Some(8 << 20), Some(212_992), Some(6_815_744)].map(size);
    let groups = [
        vec![],
        vec![vec![0, 4], vec![1, 5]],
        vec![vec![0, 1]; 64],
        vec![vec![0; 8], vec![0; 6], vec![0; 8]],
    ];
    let groups = groups.map(|groups| groups_text(&groups));
    assert_eq!(groups, ["unknown", "2 (0,4 | 1,5)", "64 of 2 cores", "3 of 6 to 8 cores"]);
    assert_eq!(sizes, ["unlimited", "512 B", "8 MiB", "208 KiB", "6.5 MiB"]);
}
