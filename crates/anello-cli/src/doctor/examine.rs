//! Judges the facts: what is well, what is not, and what to do about it. Asks the machine nothing.

use serde::Serialize;

use super::facts::{Cause, Choice, Facts, Feature, Limits, Network, Processor, Refusal, Restrictions};

/// What was made of the facts.
#[derive(Debug, Default, Serialize)]
pub struct Diagnosis {
    /// Whether any driver works.
    pub works: bool,
    pub sections: Vec<Section>,
    /// Which driver is taken, and why, in sentences.
    pub verdict: Vec<String>,
    /// What to change, the most important first.
    pub advice: Vec<Advice>,
}

/// Checks that belong together.
#[derive(Debug, Serialize)]
pub struct Section {
    pub title: &'static str,
    pub checks: Vec<Check>,
}

/// One fact, judged.
#[derive(Debug, Serialize)]
pub struct Check {
    pub topic: String,
    pub mark: CheckStatus,
    pub value: String,
    /// What it means, in a phrase.
    pub note: String,
}

/// How a fact is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckStatus {
    Ok,
    /// Costs something: there is advice.
    Attention,
    /// Neither good nor bad.
    Note,
}

/// Something to change, and what for.
#[derive(Debug, Serialize)]
pub struct Advice {
    pub text: String,
    /// Commands that do it, or lines of a configuration.
    pub commands: Vec<String>,
}

/// A kernel's version as far as it matters.
type Version = (u32, u32);

/// The oldest kernel whose io_uring has what the driver cannot do without.
const MIN_KERNEL_VERSION: Version = (5, 13);

/// Since then rings are not counted against the limit of locked memory.
const UNACCOUNTED_RINGS_VERSION: Version = (5, 12);

/// Open files below which a server soon has no descriptors left.
const RECOMMENDED_OPEN_FILES: u64 = 16_384;

/// Locked memory that one ring per core needs where it is counted.
const RECOMMENDED_LOCKED_BYTES: u64 = 8 << 20;

/// The backlog that listeners ask for by default.
const BACKLOG: u64 = 4096;

/// A TCP window below this holds back large messages.
const RECOMMENDED_WINDOW_BYTES: u64 = 1 << 20;

/// An io_uring feature as people should know it.
struct KnownFeature {
    name: &'static str,
    since: Version,
    meaning: &'static str,
    /// Off unless asked for.
    option: bool,
}

const KNOWN: [KnownFeature; 14] = [
    known("no-sqarray", (6, 6), "submissions without an index array between"),
    known("defer-taskrun", (6, 1), "completion work in batches, when the worker asks for it"),
    known("single-issuer", (6, 0), "one thread submits, which spares the kernel locks"),
    known("coop-taskrun", (5, 19), "completion work does not interrupt the worker"),
    KnownFeature { option: true, ..known("sqpoll", (5, 11), "a kernel thread takes submissions (--sqpoll)") },
    known("multishot-accept", (5, 19), "one submission accepts all connections"),
    known("multishot-recv", (6, 0), "one submission receives all messages of a connection"),
    known("buffer-ring", (5, 19), "the kernel picks receive memory when bytes arrive"),
    known("cqe-skip", (5, 17), "successes that nobody asks about post no completion"),
    known("send-at-submission", (5, 17), "a send is done with the call that submits it"),
    known("send-zc", (6, 0), "large sends to other machines without a copy"),
    known("msg-ring", (5, 18), "workers wake each other through their rings"),
    known("registered-ring", (5, 18), "no look-up of the ring's descriptor at each call"),
    KnownFeature {
        option: true,
        ..known("registered-files", (6, 14), "indexes for descriptors (--registered-files)")
    },
];

const fn known(name: &'static str, since: Version, meaning: &'static str) -> KnownFeature {
    KnownFeature { name, since, meaning, option: false }
}

/// Judges all facts.
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

/// The first two numbers of a release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<Version> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

// ---- Kernel and io_uring -----------------------------------------------------------------------------------------

fn kernel(facts: &Facts, version: Option<Version>) -> Vec<Check> {
    let Restrictions { io_uring_disabled, io_uring_group, seccomp_mode, container } = &facts.restrictions;
    let (mark, note) = match version {
        Some(version) if version >= (6, 6) => (CheckStatus::Ok, "has all that the drivers use"),
        Some(version) if version >= MIN_KERNEL_VERSION => {
            (CheckStatus::Note, "newer ones have more of io_uring, see below")
        }
        Some(_) => (CheckStatus::Attention, "too old for the io_uring driver, which needs 5.13"),
        None => (CheckStatus::Note, "not a version that could be read"),
    };
    let mut checks =
        vec![check("release", mark, format!("{} ({})", facts.kernel_release, facts.architecture), note)];
    let (mark, value, note) = match io_uring_disabled {
        None => (CheckStatus::Note, "absent".to_owned(), "kernels before 6.6 have no such switch"),
        Some(0) => (CheckStatus::Ok, "0".to_owned(), "everybody may use io_uring"),
        Some(1) => {
            let group = io_uring_group.map_or("none".to_owned(), |group| group.to_string());
            (CheckStatus::Note, format!("1, group {group}"), "only this group and root may use io_uring")
        }
        Some(other) => (CheckStatus::Attention, other.to_string(), "nobody may use io_uring"),
    };
    checks.push(check("io_uring_disabled", mark, value, note));
    let (value, note) = match seccomp_mode {
        None => ("unknown", ""),
        Some(0) => ("off", "no system call is filtered"),
        Some(1) => ("strict", "hardly any system call is allowed"),
        Some(_) => ("filtered", "a filter may forbid io_uring: tried below"),
    };
    checks.push(check("seccomp", CheckStatus::Note, value, note));
    checks.push(check("container", CheckStatus::Note, container.as_deref().unwrap_or("no sign of one"), ""));
    checks
}

fn uring(facts: &Facts, version: Option<Version>, advice: &mut Vec<Advice>) -> Section {
    if let Some(refusal) = &facts.uring.refusal {
        let checks = vec![check("set-up", CheckStatus::Attention, "refused", refusal.error.clone())];
        allow_uring(refusal, &facts.restrictions, version, advice);
        return Section { title: "io_uring", checks };
    }
    let mut checks =
        vec![check("set-up", CheckStatus::Ok, "works", "a ring was set up, and each feature tried")];
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

/// Says which kernel would bring what is missing; or, when it should be there, what may hide it.
fn newer_kernel(features: &[Feature], version: Option<Version>, advice: &mut Vec<Advice>) {
    let missing = |name: &str| features.iter().any(|feature| feature.name == name && !feature.used);
    let missing = KNOWN.iter().filter(|known| !known.option && missing(known.name));
    let (absent, hidden): (Vec<&KnownFeature>, Vec<&KnownFeature>) =
        missing.partition(|known| version.is_none_or(|version| version < known.since));
    let names = |list: &[&KnownFeature]| list.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
    if let Some(since) = absent.iter().map(|known| known.since).max() {
        let text = format!(
            "A newer kernel would make io_uring cheaper: Linux {}.{} or later has what is missing here ({}).",
            since.0,
            since.1,
            names(&absent)
        );
        advise(advice, text, &[]);
    }
    if !hidden.is_empty() {
        let text = format!(
            "This kernel should have {}, but it did not work: a seccomp filter, a security module or a limit may \
             stand in the way. ANELLO_LOG=debug says more.",
            names(&hidden)
        );
        advise(advice, text, &["ANELLO_LOG=debug anello doctor"]);
    }
}

/// What to do when there is no io_uring.
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
            "To allow io_uring, switch it on again (as root, on the host):",
            &[
                "sysctl -w kernel.io_uring_disabled=0",
                "echo kernel.io_uring_disabled=0 > /etc/sysctl.d/90-io_uring.conf",
            ],
        ),
        (Cause::Forbidden, Some(1)) => advise(
            advice,
            "To allow io_uring, let a group use it that this user is in (as root, on the host), or everybody:",
            &["sysctl -w kernel.io_uring_group=GROUP_ID", "sysctl -w kernel.io_uring_disabled=0"],
        ),
        (Cause::Forbidden, _) if filtered => allow_in_container(restrictions, advice),
        (Cause::Forbidden, _) => advise(
            advice,
            "io_uring is forbidden, but neither by the sysctl nor by a seccomp filter of this process: look for a \
             security module (SELinux, AppArmor) or a tracer.",
            &["journalctl -k --grep 'avc|apparmor|audit' | tail"],
        ),
        (Cause::Missing, _) if too_old => advise(
            advice,
            "For io_uring, run Linux 5.13 or later; 6.1 and later have what makes it fast.",
            &[],
        ),
        (Cause::Missing, _) if filtered => allow_in_container(restrictions, advice),
        (Cause::Missing, _) => advise(
            advice,
            "This kernel is new enough for io_uring but was built without it, or is not Linux itself (gVisor, WSL 1). \
             Run a kernel with CONFIG_IO_URING=y.",
            &["zgrep CONFIG_IO_URING /proc/config.gz || grep CONFIG_IO_URING /boot/config-$(uname -r)"],
        ),
        (Cause::Memory, _) => advise(
            advice,
            "There was no memory for the ring: allow more locked memory, or raise the memory limit of the control group.",
            &["ulimit -l unlimited", "docker run --ulimit memlock=-1 ...", "systemd: LimitMEMLOCK=infinity"],
        ),
        (Cause::Other, _) => advise(advice, "The error above names the cause; epoll serves meanwhile.", &[]),
    }
}

fn allow_in_container(restrictions: &Restrictions, advice: &mut Vec<Advice>) {
    let calls = "io_uring_setup, io_uring_enter and io_uring_register";
    let text = match &restrictions.container {
        Some(_) => format!(
            "The container's seccomp profile forbids io_uring, as the defaults of Docker and containerd do. Add {calls} \
             to a copy of the default profile, and run with it:"
        ),
        None => format!("A seccomp filter forbids io_uring. Where it is set up, allow {calls}:"),
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
        "each connection takes one",
    )];
    if hard < RECOMMENDED_OPEN_FILES {
        let text =
            format!("A server here can hold about {hard} connections: raise the hard limit of open files.");
        let commands = [
            "ulimit -Hn 1048576 && ulimit -n 1048576    (as root)",
            "docker run --ulimit nofile=1048576 ...",
            "systemd: LimitNOFILE=1048576",
        ];
        advise(advice, text, &commands);
    } else if soft < RECOMMENDED_OPEN_FILES {
        let text = format!(
            "Programs start with {soft} open files. anello's own commands raise that to the hard limit by themselves; for \
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
        (true, true) => (CheckStatus::Attention, "rings count against it before Linux 5.12"),
        (true, false) => (CheckStatus::Ok, "rings count against it before Linux 5.12"),
        (false, _) => (CheckStatus::Ok, "rings do not count against it since Linux 5.12"),
    };
    if counted && small {
        advise(
            advice,
            "The limit of locked memory is too small for a ring on each core with this kernel:",
            &["ulimit -l unlimited", "docker run --ulimit memlock=-1 ...", "systemd: LimitMEMLOCK=infinity"],
        );
    }
    let value = format!("{} (hard {})", size(memory.soft), size(memory.hard));
    checks.push(check("locked memory", mark, value, note));
    checks
}

fn network(network: &Network, advice: &mut Vec<Advice>) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(bound) = network.somaxconn {
        let mark = if bound < 1024 { CheckStatus::Attention } else { CheckStatus::Ok };
        checks.push(check("somaxconn", mark, bound.to_string(), "connections that may wait to be accepted"));
        if bound < 1024 {
            let text = format!(
                "A burst of more than {bound} connections is dropped before it can be accepted; listeners ask for {BACKLOG}:"
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
        let Some([least, default, most]) = bytes else { continue };
        let small = most < RECOMMENDED_WINDOW_BYTES;
        let mark = if small { CheckStatus::Attention } else { CheckStatus::Ok };
        let value = format!("{} to {}", size(Some(default)), size(Some(most)));
        checks.push(check(topic, mark, value, format!("of one connection, grown on demand ({setting})")));
        if small {
            let text = format!(
                "The TCP {topic} may not grow to a megabyte, which slows large messages over distance:"
            );
            let command = format!("sysctl -w net.ipv4.{setting}='{least} {default} 6291456'");
            advise(advice, text, &[&command]);
        }
    }
    checks
}

fn processor(processor: &Processor, advice: &mut Vec<Advice>) -> Vec<Check> {
    let cores = &processor.allowed_cores;
    let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let value = if list.len() <= 20 { format!("{} ({list})", cores.len()) } else { cores.len().to_string() };
    let mut checks = vec![check("cores allowed", CheckStatus::Note, value, "one worker each, with --cores")];
    let limit = processor.cgroup_cpus;
    let throttled = limit.is_some_and(|cpus| cpus < cores.len() as f64);
    let mark = if throttled { CheckStatus::Attention } else { CheckStatus::Ok };
    let value = limit.map_or("none".to_owned(), |cpus| format!("{cpus:.2} cores"));
    checks.push(check("cgroup limit", mark, value, "time that the control group grants"));
    if throttled && let Some(cpus) = limit {
        let workers = (cpus.floor() as usize).max(1);
        let text = format!(
            "The control group grants {cpus:.2} cores of {}: with a worker on each, all are stopped for the rest of each \
             period once the time is used up. Use at most {workers}, or raise the limit (cpu.max; docker --cpus).",
            cores.len()
        );
        let first: Vec<_> = cores.iter().take(workers).map(usize::to_string).collect();
        advise(advice, text, &[&format!("anello echo --cores {}", first.join(","))]);
    }
    if let Some(active) = processor.smt_active {
        let (value, note) = if active { ("on", "cores in pairs share their hardware") } else { ("off", "") };
        checks.push(check("SMT", CheckStatus::Note, value, note));
    }
    if let Some(governor) = &processor.governor {
        let best = governor == "performance";
        let mark = if best { CheckStatus::Ok } else { CheckStatus::Note };
        checks.push(check("governor", mark, governor.clone(), "how the frequency follows the load"));
        if !best {
            let text = format!("For measurements, hold the frequency up: the governor is {governor}.");
            advise(advice, text, &["cpupower frequency-set -g performance"]);
        }
    }
    checks
}

// ---- The verdict -------------------------------------------------------------------------------------------------

fn verdict(facts: &Facts, advice: &mut Vec<Advice>) -> Vec<String> {
    let Choice { auto, environment, overridden } = &facts.choice;
    let refusal = facts.uring.refusal.as_ref().map_or("could not be set up", |refusal| match refusal.cause {
        Cause::Forbidden => "is forbidden here",
        Cause::Missing => "is missing here, or too old",
        Cause::Memory => "found no memory",
        Cause::Other => "could not be set up",
    });
    let mut sentences = vec![match auto {
        Some(chosen) if chosen.driver == "uring" => {
            "auto takes io_uring: the kernel allows it, and its set-up and trials worked.".to_owned()
        }
        Some(chosen) => format!("auto takes {}, because io_uring {refusal} (see above).", chosen.driver),
        None => "No driver works here.".to_owned(),
    }];
    if let Some(error) = &facts.epoll.error {
        sentences.push(format!("epoll does not work: {error}."));
        advise(
            advice,
            "epoll needs nothing but descriptors and system calls that no usual profile forbids.",
            &["ulimit -n 1048576"],
        );
    }
    match (environment, overridden) {
        (Some(value), Some(Ok(chosen))) => sentences.push(format!(
            "ANELLO_DRIVER={value} overrides every program's choice: they run on {}.",
            chosen.driver
        )),
        (Some(value), Some(Err(error))) => {
            sentences.push(format!(
                "ANELLO_DRIVER={value} overrides every program's choice, and they fail: {error}."
            ));
            advise(
                advice,
                "Take the variable back, or name a driver that works here:",
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

/// Bytes with the largest unit that leaves a whole number, or one digit behind the point.
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
