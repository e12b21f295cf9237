//! Evaluates the facts about a host: checks, the selected driver, and advice. It does not query the host.

use serde::Serialize;

use super::facts::{Cause, Choice, Facts, Feature, Limits, Network, Processor, Refusal, Restrictions};

/// Result of the evaluation.
#[derive(Debug, Default, Serialize)]
pub struct Diagnosis {
    /// Whether any driver works.
    pub works: bool,
    pub sections: Vec<Section>,
    /// Sentences about the selected driver and the reason for its selection.
    pub verdict: Vec<String>,
    /// Recommended changes, the most important first.
    pub advice: Vec<Advice>,
}

/// A group of related checks.
#[derive(Debug, Serialize)]
pub struct Section {
    pub title: &'static str,
    pub checks: Vec<Check>,
}

/// An evaluated fact.
#[derive(Debug, Serialize)]
pub struct Check {
    pub topic: String,
    pub mark: CheckStatus,
    pub value: String,
    /// Meaning of the value, as a phrase.
    pub note: String,
}

/// Rating of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckStatus {
    Ok,
    /// Costs performance or capacity; the advice says what to change.
    Attention,
    /// Neutral information.
    Note,
}

/// A recommended change and its reason.
#[derive(Debug, Serialize)]
pub struct Advice {
    pub text: String,
    /// Shell commands or configuration lines that make the change.
    pub commands: Vec<String>,
}

/// Major and minor version of a kernel.
type Version = (u32, u32);

/// Oldest kernel whose io_uring has all features that the driver requires.
const MIN_KERNEL_VERSION: Version = (5, 13);

/// First kernel that does not count rings against the locked-memory limit.
const UNACCOUNTED_RINGS_VERSION: Version = (5, 12);

/// Recommended minimum of the open-file limit of a server.
const RECOMMENDED_OPEN_FILES: u64 = 16_384;

/// Recommended minimum of the locked-memory limit, in bytes, on kernels that count rings against it: enough for one
/// ring per core.
const RECOMMENDED_LOCKED_BYTES: u64 = 8 << 20;

/// Backlog that anello's listeners request by default.
const BACKLOG: u64 = 4096;

/// Recommended minimum of the largest TCP buffer, in bytes. A smaller window slows down large messages.
const RECOMMENDED_WINDOW_BYTES: u64 = 1 << 20;

/// Description of an io_uring feature.
struct KnownFeature {
    name: &'static str,
    /// First kernel that has the feature.
    since: Version,
    meaning: &'static str,
    /// Whether the feature is used only on request.
    option: bool,
}

const KNOWN: [KnownFeature; 14] = [
    known("no-sqarray", (6, 6), "submissions without the index array"),
    known("defer-taskrun", (6, 1), "completion work runs in batches, when the worker waits"),
    known("single-issuer", (6, 0), "only one thread submits, so the kernel needs fewer locks"),
    known("coop-taskrun", (5, 19), "completion work does not interrupt the worker"),
    KnownFeature {
        option: true,
        ..known("sqpoll", (5, 11), "a kernel thread polls for submissions (--sqpoll)")
    },
    known("multishot-accept", (5, 19), "one submission accepts all connections"),
    known("multishot-recv", (6, 0), "one submission receives all messages of a connection"),
    known("buffer-ring", (5, 19), "the kernel selects a receive buffer when data arrives"),
    known("cqe-skip", (5, 17), "successful operations can omit their completion"),
    known("send-at-submission", (5, 17), "sends complete during the system call that submits them"),
    known("send-zc", (6, 0), "zero-copy sends of large buffers to other hosts"),
    known("msg-ring", (5, 18), "workers wake each other through their rings"),
    known("registered-ring", (5, 18), "no lookup of the ring's descriptor in each system call"),
    KnownFeature {
        option: true,
        ..known(
            "registered-files",
            (6, 14),
            "ring-local file indexes instead of descriptors (--registered-files)",
        )
    },
];

const fn known(name: &'static str, since: Version, meaning: &'static str) -> KnownFeature {
    KnownFeature { name, since, meaning, option: false }
}

/// Evaluates all facts.
pub fn examine(facts: &Facts) -> Diagnosis {
    let version = version(&facts.kernel_release);
    let mut advice = Vec::new();
    let uring = uring(facts, version, &mut advice);
    let sections = vec![
        Section { title: "Kernel", checks: kernel(facts, version) },
        uring,
        Section { title: "Limits", checks: limits(&facts.limits, version, &mut advice) },
        Section { title: "Network", checks: network(&facts.network, &mut advice) },
        Section { title: "Processor", checks: processor(&facts.processor, &mut advice) },
    ];
    let works = facts.uring.refusal.is_none() || facts.epoll.error.is_none();
    let verdict = verdict(facts, &mut advice);
    Diagnosis { works, sections, verdict, advice }
}

fn check(topic: &str, mark: CheckStatus, value: impl Into<String>, note: impl Into<String>) -> Check {
    Check { topic: topic.to_owned(), mark, value: value.into(), note: note.into() }
}

fn advise(advice: &mut Vec<Advice>, text: impl Into<String>, commands: &[&str]) {
    let commands = commands.iter().map(|command| (*command).to_owned()).collect();
    advice.push(Advice { text: text.into(), commands });
}

/// Returns the first two numbers of a release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<Version> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

// ---- Kernel and io_uring -----------------------------------------------------------------------------------------

fn kernel(facts: &Facts, version: Option<Version>) -> Vec<Check> {
    let Restrictions { io_uring_disabled, io_uring_group, seccomp_mode, container } = &facts.restrictions;
    let (mark, note) = match version {
        Some(version) if version >= (6, 6) => (CheckStatus::Ok, "has all features that the drivers use"),
        Some(version) if version >= MIN_KERNEL_VERSION => {
            (CheckStatus::Note, "newer kernels have more io_uring features, see below")
        }
        Some(_) => (CheckStatus::Attention, "too old for the io_uring driver, which requires 5.13"),
        None => (CheckStatus::Note, "cannot read the version"),
    };
    let mut checks =
        vec![check("release", mark, format!("{} ({})", facts.kernel_release, facts.architecture), note)];
    let (mark, value, note) = match io_uring_disabled {
        None => (CheckStatus::Note, "absent".to_owned(), "kernels before 6.6 do not have this setting"),
        Some(0) => (CheckStatus::Ok, "0".to_owned(), "all processes may use io_uring"),
        Some(1) => {
            let group = io_uring_group.map_or("none".to_owned(), |group| group.to_string());
            (
                CheckStatus::Note,
                format!("1, group {group}"),
                "only root and members of this group may use io_uring",
            )
        }
        Some(other) => (CheckStatus::Attention, other.to_string(), "no process may use io_uring"),
    };
    checks.push(check("io_uring_disabled", mark, value, note));
    let (value, note) = match seccomp_mode {
        None => ("unknown", ""),
        Some(0) => ("off", "no system calls are filtered"),
        Some(1) => ("strict", "only read, write, exit and sigreturn are allowed"),
        Some(_) => ("filtered", "a filter can forbid io_uring; probed below"),
    };
    checks.push(check("seccomp", CheckStatus::Note, value, note));
    checks.push(check("container", CheckStatus::Note, container.as_deref().unwrap_or("not detected"), ""));
    checks
}

fn uring(facts: &Facts, version: Option<Version>, advice: &mut Vec<Advice>) -> Section {
    if let Some(refusal) = &facts.uring.refusal {
        let checks = vec![check("setup", CheckStatus::Attention, "failed", refusal.error.clone())];
        allow_uring(refusal, &facts.restrictions, version, advice);
        return Section { title: "io_uring", checks };
    }
    let mut checks =
        vec![check("setup", CheckStatus::Ok, "works", "a ring was created and each feature was probed")];
    checks.extend(facts.uring.features.iter().map(feature));
    newer_kernel(&facts.uring.features, version, advice);
    Section { title: "io_uring", checks }
}

fn feature(feature: &Feature) -> Check {
    let Some(known) = KNOWN.iter().find(|known| known.name == feature.name) else {
        return check(&feature.name, CheckStatus::Note, if feature.used { "used" } else { "not used" }, "");
    };
    let since = format!("{}.{}", known.since.0, known.since.1);
    match (feature.used, known.option) {
        (true, _) => check(known.name, CheckStatus::Ok, since, known.meaning),
        (false, true) => {
            check(known.name, CheckStatus::Note, since, format!("option, off: {}", known.meaning))
        }
        (false, false) => {
            check(known.name, CheckStatus::Attention, since, format!("missing: {}", known.meaning))
        }
    }
}

/// Advises on missing features: the kernel version that has them, or what can hide them if this kernel should have
/// them.
fn newer_kernel(features: &[Feature], version: Option<Version>, advice: &mut Vec<Advice>) {
    let missing = |name: &str| features.iter().any(|feature| feature.name == name && !feature.used);
    let missing = KNOWN.iter().filter(|known| !known.option && missing(known.name));
    let (absent, hidden): (Vec<&KnownFeature>, Vec<&KnownFeature>) =
        missing.partition(|known| version.is_none_or(|version| version < known.since));
    let names = |list: &[&KnownFeature]| list.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
    if let Some(since) = absent.iter().map(|known| known.since).max() {
        let text = format!(
            "Upgrade the kernel to make io_uring more efficient: Linux {}.{} or later has the missing features ({}).",
            since.0,
            since.1,
            names(&absent)
        );
        advise(advice, text, &[]);
    }
    if !hidden.is_empty() {
        let text = format!(
            "This kernel should have {}, but the probe failed: a seccomp filter, a security module or a limit may \
             prevent it. ANELLO_LOG=debug logs the details.",
            names(&hidden)
        );
        advise(advice, text, &["ANELLO_LOG=debug anello doctor"]);
    }
}

/// Advises how to make io_uring available.
fn allow_uring(
    refusal: &Refusal,
    restrictions: &Restrictions,
    version: Option<Version>,
    advice: &mut Vec<Advice>,
) {
    let filtered = restrictions.seccomp_mode.is_some_and(|mode| mode != 0);
    let too_old = version.is_some_and(|version| version < MIN_KERNEL_VERSION);
    match (refusal.cause, restrictions.io_uring_disabled) {
        (Cause::Forbidden, Some(2..)) => advise(
            advice,
            "To allow io_uring, enable it with this sysctl (as root, on the host):",
            &[
                "sysctl -w kernel.io_uring_disabled=0",
                "echo kernel.io_uring_disabled=0 > /etc/sysctl.d/90-io_uring.conf",
            ],
        ),
        (Cause::Forbidden, Some(1)) => advise(
            advice,
            "To allow io_uring, enable it for a group of this user, or for all users (as root, on the host):",
            &["sysctl -w kernel.io_uring_group=GROUP_ID", "sysctl -w kernel.io_uring_disabled=0"],
        ),
        (Cause::Forbidden, _) if filtered => allow_in_container(restrictions, advice),
        (Cause::Forbidden, _) => advise(
            advice,
            "io_uring is forbidden, but not by the sysctl or a seccomp filter of this process: check for a security \
             module (SELinux, AppArmor) or a tracer.",
            &["journalctl -k --grep 'avc|apparmor|audit' | tail"],
        ),
        (Cause::Missing, _) if too_old => advise(
            advice,
            "For io_uring, run Linux 5.13 or later; best performance requires 6.1 or later.",
            &[],
        ),
        (Cause::Missing, _) if filtered => allow_in_container(restrictions, advice),
        (Cause::Missing, _) => advise(
            advice,
            "This kernel is new enough for io_uring, but was built without it or only emulates Linux (gVisor, WSL 1). \
             Run a kernel with CONFIG_IO_URING=y.",
            &["zgrep CONFIG_IO_URING /proc/config.gz || grep CONFIG_IO_URING /boot/config-$(uname -r)"],
        ),
        (Cause::Memory, _) => advise(
            advice,
            "The kernel had no memory for the ring: raise the locked-memory limit or the memory limit of the control \
             group.",
            &["ulimit -l unlimited", "docker run --ulimit memlock=-1 ...", "systemd: LimitMEMLOCK=infinity"],
        ),
        (Cause::Other, _) => {
            advise(advice, "The error above names the cause; until it is fixed, epoll is used.", &[])
        }
    }
}

fn allow_in_container(restrictions: &Restrictions, advice: &mut Vec<Advice>) {
    let calls = "io_uring_setup, io_uring_enter and io_uring_register";
    let text = match &restrictions.container {
        Some(_) => format!(
            "The container's seccomp profile forbids io_uring, as the default profiles of Docker and containerd do. \
             Add {calls} to a copy of the default profile and use the copy:"
        ),
        None => format!("A seccomp filter forbids io_uring. Allow {calls} in its configuration:"),
    };
    advise(
        advice,
        text,
        &[
            "docker run --security-opt seccomp=profile.json ...    (podman: the same)",
            "kubernetes: securityContext.seccompProfile: {type: Localhost, localhostProfile: profile.json}",
            "systemd: SystemCallFilter=io_uring_setup io_uring_enter io_uring_register",
        ],
    );
}

// ---- Limits, network, processor ----------------------------------------------------------------------------------

fn limits(limits: &Limits, version: Option<Version>, advice: &mut Vec<Advice>) -> Vec<Check> {
    let files = limits.open_files;
    let (soft, hard) = (files.soft.unwrap_or(u64::MAX), files.hard.unwrap_or(u64::MAX));
    let mark = if soft < RECOMMENDED_OPEN_FILES { CheckStatus::Attention } else { CheckStatus::Ok };
    let mut checks = vec![check(
        "open files",
        mark,
        format!("{} (hard {})", amount(files.soft), amount(files.hard)),
        "one per connection",
    )];
    if hard < RECOMMENDED_OPEN_FILES {
        let text =
            format!("A server can hold only about {hard} connections: raise the hard limit of open files.");
        let commands = [
            "ulimit -Hn 1048576 && ulimit -n 1048576    (as root)",
            "docker run --ulimit nofile=1048576 ...",
            "systemd: LimitNOFILE=1048576",
        ];
        advise(advice, text, &commands);
    } else if soft < RECOMMENDED_OPEN_FILES {
        let text = format!(
            "Processes start with a soft limit of {soft} open files. anello's commands raise it to the hard limit; for \
             other programs, raise it before they start:"
        );
        advise(
            advice,
            text,
            &[&format!("ulimit -n {}", files.hard.map_or(1 << 20, |hard| hard.min(1 << 20)))],
        );
    }

    let memory = limits.locked_memory_bytes;
    let counted = version.is_none_or(|version| version < UNACCOUNTED_RINGS_VERSION);
    let small = memory.soft.is_some_and(|bytes| bytes < RECOMMENDED_LOCKED_BYTES);
    let (mark, note) = match (counted, small) {
        (true, true) => (CheckStatus::Attention, "before Linux 5.12, rings count against this limit"),
        (true, false) => (CheckStatus::Ok, "before Linux 5.12, rings count against this limit"),
        (false, _) => (CheckStatus::Ok, "since Linux 5.12, rings do not count against this limit"),
    };
    if counted && small {
        advise(
            advice,
            "On this kernel, the locked-memory limit is too small for one ring per core:",
            &["ulimit -l unlimited", "docker run --ulimit memlock=-1 ...", "systemd: LimitMEMLOCK=infinity"],
        );
    }
    let value = format!("{} (hard {})", size(memory.soft), size(memory.hard));
    checks.push(check("locked memory", mark, value, note));
    checks
}

fn network(network: &Network, advice: &mut Vec<Advice>) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(limit) = network.somaxconn {
        let mark = if limit < 1024 { CheckStatus::Attention } else { CheckStatus::Ok };
        checks.push(check("somaxconn", mark, limit.to_string(), "limit of the accept queue"));
        if limit < 1024 {
            let text = format!(
                "In a burst, connections beyond {limit} in the accept queue are dropped; listeners request {BACKLOG}:"
            );
            advise(advice, text, &[&format!("sysctl -w net.core.somaxconn={BACKLOG}")]);
        }
    }
    if let Some(algorithm) = &network.congestion_control {
        checks.push(check(
            "congestion control",
            CheckStatus::Note,
            algorithm.clone(),
            "of new TCP connections",
        ));
    }
    let windows = [
        ("receive buffer", "tcp_rmem", network.receive_memory_bytes),
        ("send buffer", "tcp_wmem", network.send_memory_bytes),
    ];
    for (topic, setting, bytes) in windows {
        let Some([min, default, max]) = bytes else { continue };
        let small = max < RECOMMENDED_WINDOW_BYTES;
        let mark = if small { CheckStatus::Attention } else { CheckStatus::Ok };
        let value = format!("{} to {}", size(Some(default)), size(Some(max)));
        checks.push(check(topic, mark, value, format!("per connection, grows on demand ({setting})")));
        if small {
            let text = format!(
                "The maximum of the TCP {topic} is below 1 MiB, which slows down large messages on long-distance paths:"
            );
            let command = format!("sysctl -w net.ipv4.{setting}='{min} {default} 6291456'");
            advise(advice, text, &[&command]);
        }
    }
    checks
}

fn processor(processor: &Processor, advice: &mut Vec<Advice>) -> Vec<Check> {
    let cores = &processor.allowed_cores;
    let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let value = if list.len() <= 20 { format!("{} ({list})", cores.len()) } else { cores.len().to_string() };
    let mut checks =
        vec![check("cores allowed", CheckStatus::Note, value, "--cores starts one worker per core")];
    let limit = processor.cgroup_cpus;
    let throttled = limit.is_some_and(|cpus| cpus < cores.len() as f64);
    let mark = if throttled { CheckStatus::Attention } else { CheckStatus::Ok };
    let value = limit.map_or("none".to_owned(), |cpus| format!("{cpus:.2} cores"));
    checks.push(check("cgroup limit", mark, value, "CPU limit of the control group"));
    if throttled && let Some(cpus) = limit {
        let workers = (cpus.floor() as usize).max(1);
        let text = format!(
            "The control group limits this process to {cpus:.2} of {} cores: with one worker per core, the kernel \
             stops all workers in each period once the CPU time is used up. Run at most {workers} workers, or raise \
             the limit (cpu.max; docker --cpus).",
            cores.len()
        );
        let first: Vec<_> = cores.iter().take(workers).map(usize::to_string).collect();
        advise(advice, text, &[&format!("anello echo --cores {}", first.join(","))]);
    }
    if let Some(active) = processor.smt_active {
        let (value, note) = if active { ("on", "logical cores share physical cores") } else { ("off", "") };
        checks.push(check("SMT", CheckStatus::Note, value, note));
    }
    if let Some(governor) = &processor.governor {
        let is_performance = governor == "performance";
        let mark = if is_performance { CheckStatus::Ok } else { CheckStatus::Note };
        checks.push(check("governor", mark, governor.clone(), "CPU frequency scaling policy"));
        if !is_performance {
            let text =
                format!("For measurements, use the performance governor; the current one is {governor}.");
            advise(advice, text, &["cpupower frequency-set -g performance"]);
        }
    }
    checks
}

// ---- The verdict -------------------------------------------------------------------------------------------------

fn verdict(facts: &Facts, advice: &mut Vec<Advice>) -> Vec<String> {
    let Choice { auto, environment, overridden } = &facts.choice;
    let refusal = facts.uring.refusal.as_ref().map_or("cannot be set up", |refusal| match refusal.cause {
        Cause::Forbidden => "is forbidden",
        Cause::Missing => "is missing or too old",
        Cause::Memory => "cannot allocate its ring",
        Cause::Other => "cannot be set up",
    });
    let mut sentences = vec![match auto {
        Some(chosen) if chosen.driver == "uring" => {
            "auto selects io_uring: the kernel allows it, and setup and probes succeeded.".to_owned()
        }
        Some(chosen) => format!("auto selects {}, because io_uring {refusal} (see above).", chosen.driver),
        None => "No driver works on this host.".to_owned(),
    }];
    if let Some(error) = &facts.epoll.error {
        sentences.push(format!("epoll does not work: {error}."));
        advise(
            advice,
            "epoll requires only file descriptors and system calls that common seccomp profiles allow.",
            &["ulimit -n 1048576"],
        );
    }
    match (environment, overridden) {
        (Some(value), Some(Ok(chosen))) => sentences.push(format!(
            "ANELLO_DRIVER={value} overrides the driver of every application: {} is used.",
            chosen.driver
        )),
        (Some(value), Some(Err(error))) => {
            sentences.push(format!(
                "ANELLO_DRIVER={value} overrides the driver of every application, which then fails: {error}."
            ));
            advise(
                advice,
                "Unset the variable, or set it to a driver that works on this host:",
                &["unset ANELLO_DRIVER"],
            );
        }
        _ => {}
    }
    sentences
}

fn amount(value: Option<u64>) -> String {
    value.map_or("unlimited".to_owned(), |value| value.to_string())
}

/// Formats a number of bytes in B, KiB, MiB or GiB, as a whole number or with one decimal place.
fn size(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else { return "unlimited".to_owned() };
    let (unit, name) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..1_048_576 => (1024, "KiB"),
        1_048_576..1_073_741_824 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    if bytes % unit == 0 {
        format!("{} {name}", bytes / unit)
    } else {
        format!("{:.1} {name}", bytes as f64 / unit as f64)
    }
}

#[cfg(test)]
#[path = "examine_tests.rs"]
mod tests;
