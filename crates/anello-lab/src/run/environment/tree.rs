//! File tree with the contents of `/proc` and `/sys`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use crate::result::environment::SYSCTLS;

/// Any file may be missing.
pub(super) struct Tree<'a> {
    pub(super) root: &'a Path,
}

impl Tree<'_> {
    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    pub(super) fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    pub(super) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.line(path)?.parse().ok()
    }

    /// Returns the frequency governor of these cores or, if they differ, each governor with its cores.
    pub(super) fn governor(&self, cores: &[usize]) -> Option<String> {
        let mut groups: Vec<(Option<String>, Vec<String>)> = Vec::new();
        for core in cores {
            let governor = self.line(&format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"));
            match groups.iter_mut().find(|(known, _)| *known == governor) {
                Some((_, group)) => group.push(core.to_string()),
                None => groups.push((governor, vec![core.to_string()])),
            }
        }
        if let [(governor, _)] = groups.as_slice() {
            return governor.clone();
        }
        let describe = |(governor, group): &(Option<String>, Vec<String>)| {
            let plural = if group.len() == 1 { "core" } else { "cores" };
            format!("{} on {plural} {}", governor.as_deref().unwrap_or("not visible"), group.join(", "))
        };
        (!groups.is_empty()).then(|| groups.iter().map(describe).collect::<Vec<_>>().join("; "))
    }

    pub(super) fn sysctls(&self) -> BTreeMap<String, String> {
        let value = |name: &str| self.words(&format!("proc/sys/{}", name.replace('.', "/")));
        SYSCTLS.iter().filter_map(|&name| Some((name.to_owned(), value(name)?))).collect()
    }

    /// Returns the first line of a file, with whitespace normalized to single spaces.
    pub(super) fn words(&self, path: &str) -> Option<String> {
        Some(self.line(path)?.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Reads the boost state. `intel_pstate` reports the inverted state (`no_turbo`).
    pub(super) fn boost(&self) -> Option<String> {
        let is_on = match self.line("sys/devices/system/cpu/intel_pstate/no_turbo") {
            Some(no_turbo) => no_turbo == "0",
            None => self.line("sys/devices/system/cpu/cpufreq/boost")? == "1",
        };
        Some(if is_on { "on" } else { "off" }.to_owned())
    }

    /// Reads the CPU time limit of the control group (version 1 or 2).
    pub(super) fn cpu_limit(&self) -> Option<String> {
        let groups = self.text("proc/self/cgroup")?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let unified = [format!("sys/fs/cgroup/{own}/cpu.max"), "sys/fs/cgroup/cpu.max".to_owned()];
        if let Some(line) = unified.iter().find_map(|path| self.line(path)) {
            let (quota, period) = line.split_once(' ')?;
            return (quota != "max").then(|| format!("{quota} of {period} us"));
        }
        let quota = self.line("sys/fs/cgroup/cpu/cpu.cfs_quota_us")?;
        let period = self.line("sys/fs/cgroup/cpu/cpu.cfs_period_us")?;
        (quota != "-1").then(|| format!("{quota} of {period} us"))
    }

    pub(super) fn container(&self) -> Option<String> {
        for (name, file) in [("Docker", ".dockerenv"), ("Podman", "run/.containerenv")] {
            if self.root.join(file).exists() {
                return Some(format!("{name} (/{file})"));
            }
        }
        let cgroup = self.text("proc/1/cgroup")?;
        let signs = ["docker", "kubepods", "containerd", "lxc", "libpod"];
        let sign = signs.into_iter().find(|sign| cgroup.contains(sign))?;
        Some(format!("{sign} (cgroup of process 1)"))
    }
}

/// Returns the bracketed word in a line such as `always [madvise] never`.
pub(super) fn bracketed_option(line: &str) -> Option<String> {
    Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())
}
