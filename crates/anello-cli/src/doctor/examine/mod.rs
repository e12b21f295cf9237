//! Evaluates the facts about a host and produces checks, the selected driver, and advice. Does not query the host.

mod queues;

use serde::Serialize;

use super::facts::{
    Cause, Choice, Facts, Feature, Interface, Interrupt, Limits, Network, Processor, Refusal, Restrictions,
    Topology,
};
use crate::common::values::ranges;

use self::CheckStatus::{Attention, Note};

#[derive(Debug, Default, Serialize)]
pub struct Diagnosis {
    /// Whether any driver works.
    pub works: bool,
    pub sections: Vec<Section>,
    /// Sentences about the selected driver and the reason for its selection.
    pub verdict: Vec<String>,
    /// Recommended changes, most important first.
    pub advice: Vec<Advice>,
}

#[derive(Debug, Serialize)]
pub struct Section {
    pub title: &'static str,
    pub checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
pub struct Check {
    pub topic: String,
    pub mark: CheckStatus,
    pub value: String,
    /// Phrase that explains the value.
    pub note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckStatus {
    Ok,
    /// The value limits performance or capacity; the advice says what to change.
    Attention,
    /// Information only.
    Note,
}

#[derive(Debug, Serialize)]
pub struct Advice {
    pub text: String,
    /// Shell commands or configuration lines that make the change.
    pub commands: Vec<String>,
}

/// Major and minor kernel version.
type Version = (u32, u32);

/// Oldest kernel whose io_uring has all features that the driver requires.
const MIN_KERNEL_VERSION: Version = (5, 13);

/// First kernel that does not count rings against the locked-memory limit.
const UNACCOUNTED_RINGS_VERSION: Version = (5, 12);

/// Recommended minimum open-file limit for a server.
const RECOMMENDED_OPEN_FILES: u64 = 16_384;

/// Recommended minimum locked-memory limit on kernels that count rings against it: enough for one ring per core.
const RECOMMENDED_LOCKED_BYTES: u64 = 8 << 20;

/// Backlog that anello's listeners request by default.
const BACKLOG: u64 = 4096;

/// Recommended minimum for the maximum TCP buffer size. A smaller window slows down large messages.
const RECOMMENDED_WINDOW_BYTES: u64 = 1 << 20;

const RAISE_LOCKED_MEMORY: [&str; 3] =
    ["ulimit -l unlimited", "docker run --ulimit memlock=-1 ...", "systemd: LimitMEMLOCK=infinity"];

struct KnownFeature {
    name: &'static str,
    /// First kernel that has the feature.
    since: Version,
    meaning: &'static str,
    /// Whether the feature is used only on request.
    option: bool,
}

const KNOWN: [KnownFeature; 14] = [
    known("no-sqarray", (6, 6), "submissions do not need the index array"),
    known("defer-taskrun", (6, 1), "task work runs in batches, when the worker waits"),
    known("single-issuer", (6, 0), "only one thread submits, so the kernel needs fewer locks"),
    known("coop-taskrun", (5, 19), "task work does not interrupt the worker"),
    option("sqpoll", (5, 11), "a kernel thread polls for submissions (--sqpoll)"),
    known("multishot-accept", (5, 19), "one submission accepts all connections"),
    known("multishot-recv", (6, 0), "one submission receives all messages of a connection"),
    known("buffer-ring", (5, 19), "the kernel selects a receive buffer when data arrives"),
    known("cqe-skip", (5, 17), "successful operations can omit their completion"),
    known("send-at-submission", (5, 17), "sends complete during the system call that submits them"),
    known("send-zc", (6, 0), "large buffers are sent to other hosts without copying"),
    known("msg-ring", (5, 18), "workers wake each other through their rings"),
    known("registered-ring", (5, 18), "system calls do not look up the descriptor of the ring"),
    option("min-wait", (6, 12), "a worker waits for several events at once (--max-batch-delay)"),
];

const fn known(name: &'static str, since: Version, meaning: &'static str) -> KnownFeature {
    KnownFeature { name, since, meaning, option: false }
}

const fn option(name: &'static str, since: Version, meaning: &'static str) -> KnownFeature {
    KnownFeature { name, since, meaning, option: true }
}

pub fn examine(facts: &Facts) -> Diagnosis {
    let version = version(&facts.kernel_release);
    let mut examination = Examination { facts, version, checks: Vec::new(), advice: Vec::new() };
    let sections = vec![
        examination.section("Kernel", Examination::kernel),
        examination.section("io_uring", Examination::uring),
        examination.section("Limits", Examination::limits),
        examination.section("Network", Examination::network),
        examination.section("Processor", Examination::processor),
        examination.section("Topology", Examination::topology),
    ];
    let works = facts.uring.refusal.is_none() || facts.epoll.error.is_none();
    let verdict = examination.verdict();
    Diagnosis { works, sections, verdict, advice: examination.advice }
}

/// Returns the first two numbers of a kernel release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<Version> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn attention_if(is_problem: bool) -> CheckStatus {
    if is_problem { Attention } else { CheckStatus::Ok }
}

struct Examination<'a> {
    facts: &'a Facts,
    version: Option<Version>,
    /// Checks of the current section.
    checks: Vec<Check>,
    advice: Vec<Advice>,
}

impl Examination<'_> {
    fn check(&mut self, topic: &str, mark: CheckStatus, value: impl Into<String>, note: impl Into<String>) {
        self.checks.push(Check { topic: topic.to_owned(), mark, value: value.into(), note: note.into() });
    }

    fn section(&mut self, title: &'static str, evaluate: fn(&mut Self)) -> Section {
        evaluate(self);
        Section { title, checks: std::mem::take(&mut self.checks) }
    }

    fn advise(&mut self, text: impl Into<String>, commands: &[&str]) {
        let commands = commands.iter().map(|&command| command.to_owned()).collect();
        self.advice.push(Advice { text: text.into(), commands });
    }

    fn kernel(&mut self) {
        let Restrictions { io_uring_disabled, io_uring_group, seccomp_mode, container } =
            &self.facts.restrictions;
        let (mark, note) = match self.version {
            Some(version) if version >= (6, 6) => (CheckStatus::Ok, "has all features that the drivers use"),
            Some(version) if version >= MIN_KERNEL_VERSION => {
                (Note, "newer kernels have more io_uring features (see below)")
            }
            Some(_) => (Attention, "too old for the io_uring driver, which requires 5.13"),
            None => (Note, "cannot read the version"),
        };
        let release = format!("{} ({})", self.facts.kernel_release, self.facts.architecture);
        self.check("release", mark, release, note);
        let group = io_uring_group.map_or("none".to_owned(), |group| group.to_string());
        let (mark, value, note) = match io_uring_disabled {
            None => (Note, "absent".to_owned(), "kernels before 6.6 do not have this setting"),
            Some(0) => (CheckStatus::Ok, "0".to_owned(), "all processes may use io_uring"),
            Some(1) => {
                (Note, format!("1, group {group}"), "only root and members of this group may use io_uring")
            }
            Some(other) => (Attention, other.to_string(), "no process may use io_uring"),
        };
        self.check("io_uring_disabled", mark, value, note);
        let (value, note) = match seccomp_mode {
            None => ("unknown", ""),
            Some(0) => ("off", "no system calls are filtered"),
            Some(1) => ("strict", "only read, write, exit and sigreturn are allowed"),
            Some(_) => ("filtered", "a filter can forbid io_uring; see the io_uring checks below"),
        };
        self.check("seccomp", Note, value, note);
        self.check("container", Note, container.as_deref().unwrap_or("not detected"), "");
    }

    fn uring(&mut self) {
        if let Some(refusal) = &self.facts.uring.refusal {
            self.check("setup", Attention, "failed", &refusal.error);
            return self.allow_uring(refusal);
        }
        self.check("setup", CheckStatus::Ok, "works", "a ring was created and each feature was probed");
        self.facts.uring.features.iter().for_each(|feature| self.feature(feature));
        self.missing_features();
    }

    fn feature(&mut self, Feature { name, used, available }: &Feature) {
        let Some(known) = KNOWN.iter().find(|known| known.name == name) else {
            return self.check(name, Note, if *used { "used" } else { "not used" }, "");
        };
        let (mark, state) = match (used, known.option) {
            (true, _) => (CheckStatus::Ok, ""),
            (false, true) if *available => (Note, "option, off: "),
            (false, true) => (Note, "option, not available: "),
            (false, false) => (Attention, "missing: "),
        };
        let (major, minor) = known.since;
        self.check(name, mark, format!("{major}.{minor}"), format!("{state}{}", known.meaning));
    }

    /// Names the kernel version that has the missing features, or what can hide features that this kernel should have.
    fn missing_features(&mut self) {
        let features = &self.facts.uring.features;
        let is_unused = |name| features.iter().any(|feature| feature.name == name && !feature.used);
        let missing = KNOWN.iter().filter(|known| !known.option && is_unused(known.name));
        let (absent, hidden): (Vec<&KnownFeature>, Vec<&KnownFeature>) =
            missing.partition(|known| self.version.is_none_or(|version| version < known.since));
        let [absent_names, hidden_names] = [&absent, &hidden]
            .map(|features| features.iter().map(|known| known.name).collect::<Vec<_>>().join(", "));
        if let Some((major, minor)) = absent.iter().map(|known| known.since).max() {
            let text = format!(
                "Upgrade the kernel to make io_uring more efficient: Linux {major}.{minor} or later has the missing \
                 features ({absent_names})."
            );
            self.advise(text, &[]);
        }
        if !hidden.is_empty() {
            let text = format!(
                "This kernel should have {hidden_names}, but the probe failed: a seccomp filter, a security module or \
                 a limit may be the cause. ANELLO_LOG=debug logs the details."
            );
            self.advise(text, &["ANELLO_LOG=debug anello doctor"]);
        }
    }

    /// Advises how to make io_uring available.
    fn allow_uring(&mut self, refusal: &Refusal) {
        let restrictions = &self.facts.restrictions;
        let is_filtered = restrictions.seccomp_mode.is_some_and(|mode| mode != 0);
        let is_too_old = self.version.is_some_and(|version| version < MIN_KERNEL_VERSION);
        let (text, commands): (&str, &[&str]) = match (refusal.cause, restrictions.io_uring_disabled) {
            (Cause::Forbidden, Some(2..)) => (
                "To allow io_uring, enable it with this sysctl (as root, on the host):",
                &[
                    "sysctl -w kernel.io_uring_disabled=0",
                    "echo kernel.io_uring_disabled=0 > /etc/sysctl.d/90-io_uring.conf",
                ],
            ),
            (Cause::Forbidden, Some(1)) => (
                "To allow io_uring, enable it for a group of this user, or for all users (as root, on the host):",
                &["sysctl -w kernel.io_uring_group=GROUP_ID", "sysctl -w kernel.io_uring_disabled=0"],
            ),
            (Cause::Missing, _) if is_too_old => {
                ("For io_uring, run Linux 5.13 or later; best performance requires 6.1 or later.", &[])
            }
            (Cause::Forbidden | Cause::Missing, _) if is_filtered => return self.allow_in_filter(),
            (Cause::Forbidden, _) => (
                "io_uring is forbidden, but not by the sysctl or a seccomp filter of this process: check for a security \
                 module (SELinux, AppArmor) or a tracer.",
                &["journalctl -k --grep 'avc|apparmor|audit' | tail"],
            ),
            (Cause::Missing, _) => (
                "This kernel is new enough for io_uring, but was built without it or only emulates Linux (gVisor, WSL \
                 1). Run a kernel with CONFIG_IO_URING=y.",
                &["zgrep CONFIG_IO_URING /proc/config.gz || grep CONFIG_IO_URING /boot/config-$(uname -r)"],
            ),
            (Cause::Memory, _) => (
                "The kernel had no memory for the ring: raise the locked-memory limit or the memory limit of the \
                 control group.",
                &RAISE_LOCKED_MEMORY,
            ),
            (Cause::Other, _) => ("The error above names the cause; until it is fixed, epoll is used.", &[]),
        };
        self.advise(text, commands);
    }

    fn allow_in_filter(&mut self) {
        let calls = "io_uring_setup, io_uring_enter and io_uring_register";
        let text = match &self.facts.restrictions.container {
            Some(_) => format!(
                "The container's seccomp profile forbids io_uring, as the default profiles of Docker and containerd \
                 do. Add {calls} to a copy of the default profile and use the copy:"
            ),
            None => format!("A seccomp filter forbids io_uring. Allow {calls} in its configuration:"),
        };
        let commands = [
            "docker run --security-opt seccomp=profile.json ...    (podman: the same)",
            "kubernetes: securityContext.seccompProfile: {type: Localhost, localhostProfile: profile.json}",
            "systemd: SystemCallFilter=io_uring_setup io_uring_enter io_uring_register",
        ];
        self.advise(text, &commands);
    }

    fn limits(&mut self) {
        let Limits { open_files: files, locked_memory_bytes: memory } = self.facts.limits;
        let amount = |value: Option<u64>| value.map_or("unlimited".to_owned(), |value| value.to_string());
        let (soft, hard) = (files.soft.unwrap_or(u64::MAX), files.hard.unwrap_or(u64::MAX));
        let value = format!("{} (hard {})", amount(files.soft), amount(files.hard));
        self.check("open files", attention_if(soft < RECOMMENDED_OPEN_FILES), value, "one per connection");
        if hard < RECOMMENDED_OPEN_FILES {
            let text = format!(
                "A server can hold only about {hard} connections: raise the hard limit on open files."
            );
            let commands = [
                "ulimit -Hn 1048576 && ulimit -n 1048576    (as root)",
                "docker run --ulimit nofile=1048576 ...",
                "systemd: LimitNOFILE=1048576",
            ];
            self.advise(text, &commands);
        } else if soft < RECOMMENDED_OPEN_FILES {
            let text = format!(
                "Processes start with a soft limit of {soft} open files. anello's commands raise it to the hard limit; \
                 for other programs, raise it before they start:"
            );
            self.advise(text, &[&format!("ulimit -n {}", hard.min(1 << 20))]);
        }

        let is_counted = self.version.is_none_or(|version| version < UNACCOUNTED_RINGS_VERSION);
        let is_small = is_counted && memory.soft.is_some_and(|bytes| bytes < RECOMMENDED_LOCKED_BYTES);
        let (since, not) = if is_counted { ("before", "") } else { ("since", "do not ") };
        let note = format!("{since} Linux 5.12, rings {not}count against this limit");
        let value = format!("{} (hard {})", size(memory.soft), size(memory.hard));
        self.check("locked memory", attention_if(is_small), value, note);
        if is_small {
            let text = "On this kernel, the locked-memory limit is too small for one ring per core:";
            self.advise(text, &RAISE_LOCKED_MEMORY);
        }
    }

    fn network(&mut self) {
        let Network { somaxconn, congestion_control, receive_memory_bytes, send_memory_bytes } =
            &self.facts.network;
        if let Some(limit) = *somaxconn {
            let is_small = limit < 1024;
            self.check("somaxconn", attention_if(is_small), limit.to_string(), "accept queue limit");
            if is_small {
                let text = format!(
                    "In a burst, the kernel drops connections if more than {limit} are in the accept queue; listeners \
                     request a limit of {BACKLOG}:"
                );
                self.advise(text, &[&format!("sysctl -w net.core.somaxconn={BACKLOG}")]);
            }
        }
        if let Some(algorithm) = congestion_control {
            self.check("congestion control", Note, algorithm, "for new TCP connections");
        }
        for (topic, setting, bytes) in [
            ("receive buffer", "tcp_rmem", receive_memory_bytes),
            ("send buffer", "tcp_wmem", send_memory_bytes),
        ] {
            let Some([min, default, max]) = *bytes else { continue };
            let is_small = max < RECOMMENDED_WINDOW_BYTES;
            let value = format!("{} to {}", size(Some(default)), size(Some(max)));
            let note = format!("per connection, grows on demand ({setting})");
            self.check(topic, attention_if(is_small), value, note);
            if is_small {
                let text = format!(
                    "The maximum of the TCP {topic} is below 1 MiB, which slows down large messages on long-distance \
                     paths:"
                );
                self.advise(text, &[&format!("sysctl -w net.ipv4.{setting}='{min} {default} 6291456'")]);
            }
        }
    }

    fn processor(&mut self) {
        let Processor { allowed_cores: cores, smt_active, governor, cgroup_cpus } = &self.facts.processor;
        let list = |count| cores[..count].iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut value = cores.len().to_string();
        let all = Some(list(cores.len())).filter(|all| all.len() <= 20);
        value.extend(all.map(|all| format!(" ({all})")));
        self.check("cores allowed", Note, value, "--cores starts one worker per core");
        let throttled = cgroup_cpus.filter(|&cpus| cpus < cores.len() as f64);
        let value = cgroup_cpus.map_or("none".to_owned(), |cpus| format!("{cpus:.2} cores"));
        let note = "CPU limit of the control group";
        self.check("cgroup limit", attention_if(throttled.is_some()), value, note);
        if let Some(cpus) = throttled {
            let workers = (cpus.floor() as usize).max(1);
            let text = format!(
                "The control group limits this process to {cpus:.2} of {} cores: with one worker per core, the kernel \
                 stops all workers in each period once the CPU time is used up. Run at most {workers} workers, or \
                 raise the limit (cpu.max; docker --cpus).",
                cores.len()
            );
            self.advise(text, &[&format!("anello echo --cores {}", list(workers))]);
        }
        match smt_active {
            Some(true) => self.check("SMT", Note, "on", "logical cores share physical cores"),
            Some(false) => self.check("SMT", Note, "off", ""),
            None => {}
        }
        if let Some(governor) = governor {
            let mark = if governor == "performance" { CheckStatus::Ok } else { Note };
            self.check("governor", mark, governor, "CPU frequency scaling policy");
            if mark == Note {
                let text =
                    format!("For measurements, use the performance governor; the current one is {governor}.");
                self.advise(text, &["cpupower frequency-set -g performance"]);
            }
        }
    }

    fn topology(&mut self) {
        let Topology { nodes, caches, physical_cores, worker_cores, hypervisor } = &self.facts.topology;
        let nodes: Vec<_> = nodes.iter().map(|node| node.cores.clone()).collect();
        self.check("NUMA nodes", Note, groups_text(&nodes), "memory of a worker is on the node of its core");
        self.check("shared caches", Note, groups_text(caches), "cores with the same last-level cache");
        self.check("physical cores", Note, groups_text(physical_cores), "each with its threads (SMT)");
        let is_first = |core: &&usize| {
            let siblings = physical_cores.iter().find(|siblings| siblings.contains(core));
            siblings
                .is_none_or(|siblings| siblings.iter().find(|core| worker_cores.contains(core)) == Some(core))
        };
        let first_threads = worker_cores.iter().filter(is_first).count();
        let note = match worker_cores.len() - first_threads {
            0 => "order of --cores all; N workers: the first N".to_owned(),
            _ => format!(
                "order of --cores all; N workers: the first N; from worker {first_threads} on, SMT siblings"
            ),
        };
        self.check("cores of workers", Note, ranges(worker_cores), note);
        if *hypervisor == Some(true) {
            let note = "cannot be checked here: a hypervisor can hide or invent nodes, caches and SMT siblings, and can \
                        move virtual CPUs; compare with the documentation of the machine type";
            self.check("real hardware", Note, "virtual machine", note);
        }
        if self.facts.interfaces.is_empty() {
            let note = "cannot be checked here: no network device is visible (container, or only virtual interfaces); \
                        run anello doctor on the host";
            return self.check("interrupts", Note, "unknown", note);
        }
        let (value, note) = match self.facts.irqbalance {
            Some(true) => ("running", "moves interrupts between cores"),
            Some(false) => ("not running", "interrupts stay where they are"),
            None => ("unknown", "cannot be checked here: the processes of the host are not visible"),
        };
        self.check("irqbalance", Note, value, note);
        self.facts.interfaces.iter().for_each(|interface| self.interface(interface));
    }

    /// Checks that the packets of receive queue `i` are processed on the core of worker `i`.
    fn interface(&mut self, interface: &Interface) {
        let worker_cores = &self.facts.topology.worker_cores;
        let (name, queues) = (&interface.name, interface.receive_queues.len());
        let plural = if queues == 1 { "" } else { "s" };
        let value = format!("{queues} queue{plural}");
        let topic = format!("interrupts {name}");
        let driver = interface.driver.as_deref().unwrap_or("of this device");
        let Some(interrupts) = queues::receive_interrupts(interface).filter(|_| queues > 0) else {
            let note = match interface.interrupts.is_empty() {
                true => "cannot be checked here: /proc/interrupts has none for this device".to_owned(),
                false => format!(
                    "cannot be checked: the driver {driver} does not name its interrupts after queues"
                ),
            };
            return self.check(&topic, Note, value, note);
        };
        let cores: Option<Vec<_>> =
            interrupts.iter().map(|interrupt: &&Interrupt| interrupt.cores.as_deref()).collect();
        let Some(cores) = cores else {
            let note = "cannot be checked here: /proc/irq is not readable";
            return self.check(&topic, Note, value, note);
        };
        let text = cores.iter().take(8).map(|cores| ranges(cores)).collect::<Vec<_>>().join(" | ");
        let more = if queues > 8 { " | ..." } else { "" };
        let steered =
            interface.receive_queues.iter().any(|queue| !matches!(queue.cores.as_deref(), Some([]) | None));
        let rps = if steered { "; rps_cpus moves the packets to further cores" } else { "" };
        let node = interface.node.map_or(String::new(), |node| format!("; device on node {node}"));
        let wanted = queues::queue_cores(queues, worker_cores);
        let is_aligned = wanted.iter().zip(&cores).all(|(wanted, cores)| *cores == [*wanted]);
        let mark = if is_aligned && queues >= worker_cores.len() { CheckStatus::Ok } else { Note };
        self.check(&topic, mark, value, format!("handled on core {text}{more}{rps}{node}"));
        if worker_cores.len() < 2 {
            return;
        }
        let mut commands = Vec::new();
        if queues < worker_cores.len() && !steered {
            commands.push(format!(
                "ethtool -L {name} combined {}    (then run anello doctor again; ethtool -l {name} prints the maximum)",
                worker_cores.len()
            ));
        }
        if queues == 1 && !steered {
            commands.push(format!(
                "echo {} > /sys/class/net/{name}/queues/rx-{}/rps_cpus    (if the device has only one queue)",
                queues::mask(worker_cores),
                interface.receive_queues[0].number
            ));
            let text = format!(
                "{name} has one receive queue, so core {text} processes all its packets. If this core is busier than the \
                 others, use more queues, or let the kernel spread the packets over the cores of the workers (as root, \
                 until the next boot):"
            );
            return self.advise(text, &commands.iter().map(String::as_str).collect::<Vec<_>>());
        }
        if self.facts.irqbalance != Some(false) && !is_aligned {
            commands.push(
                "systemctl disable --now irqbalance    (it would move the interrupts again)".to_owned(),
            );
        }
        commands.extend((!is_aligned).then(|| queues::interrupt_command(&interrupts, &wanted)));
        commands.extend(queues::transmit_command(interface, worker_cores));
        if commands.is_empty() {
            return;
        }
        let text = format!(
            "To process the packets of queue i of {name} on the core of worker i, direct its interrupt there (as root, \
             until the next boot). This needs workers with --cores all and, to keep a connection on that core, \
             --distribution by-core --no-rebalance (in programs, ListenerGroup::steer_by_core):"
        );
        self.advise(text, &commands.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn verdict(&mut self) -> Vec<String> {
        let Choice { auto, environment, overridden } = &self.facts.choice;
        let refusal = match self.facts.uring.refusal.as_ref().map(|refusal| refusal.cause) {
            Some(Cause::Forbidden) => "is forbidden",
            Some(Cause::Missing) => "is missing or too old",
            Some(Cause::Memory) => "cannot allocate its ring",
            Some(Cause::Other) | None => "cannot be set up",
        };
        let mut sentences = vec![match auto {
            Some(chosen) if chosen.driver == "uring" => {
                "auto selects io_uring: the kernel allows it, and setup and probes succeeded.".to_owned()
            }
            Some(chosen) => {
                format!("auto selects {}, because io_uring {refusal} (see above).", chosen.driver)
            }
            None => "No driver works on this host.".to_owned(),
        }];
        if let Some(error) = &self.facts.epoll.error {
            sentences.push(format!("epoll does not work: {error}."));
            let text =
                "epoll requires only file descriptors and system calls that common seccomp profiles allow.";
            self.advise(text, &["ulimit -n 1048576"]);
        }
        if let (Some(value), Some(overridden)) = (environment, overridden) {
            let effect = match overridden {
                Ok(chosen) => format!(": {} is used.", chosen.driver),
                Err(error) => format!(", which then fails: {error}."),
            };
            let overrides = "overrides the driver of every application";
            sentences.push(format!("ANELLO_DRIVER={value} {overrides}{effect}"));
            if overridden.is_err() {
                let text = "Unset the variable, or set it to a driver that works on this host:";
                self.advise(text, &["unset ANELLO_DRIVER"]);
            }
        }
        sentences
    }
}

/// Formats groups of cores: a list for a few groups, otherwise their number and size.
fn groups_text(groups: &[Vec<usize>]) -> String {
    const MAX_LIST_COLUMNS: usize = 30;
    let list = groups.iter().map(|cores| ranges(cores)).collect::<Vec<_>>().join(" | ");
    let [min, max] = [groups.iter().map(Vec::len).min(), groups.iter().map(Vec::len).max()];
    match (min, max) {
        (Some(_), Some(_)) if list.len() <= MAX_LIST_COLUMNS => format!("{} ({list})", groups.len()),
        (Some(min), Some(max)) if min == max => format!("{} of {min} cores", groups.len()),
        (Some(min), Some(max)) => format!("{} of {min} to {max} cores", groups.len()),
        _ => "unknown".to_owned(),
    }
}

/// Formats a number of bytes in B, KiB, MiB or GiB, as a whole number or with one decimal place.
fn size(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else { return "unlimited".to_owned() };
    let (unit, name) = match bytes {
        0..1024 => (1, "B"),
        1024..1_048_576 => (1024, "KiB"),
        1_048_576..1_073_741_824 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    let digits = usize::from(bytes % unit != 0);
    format!("{:.digits$} {name}", bytes as f64 / unit as f64)
}

#[cfg(test)]
mod tests;
