//! CPU vulnerabilities: which ones the kernel mitigates, and which ones it reports as unmitigated.

use std::fs;

use crate::run::environment::tree::Tree;

/// CPU vulnerabilities, as the kernel reports them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Vulnerabilities {
    /// Active mitigations, by vulnerability: "meltdown: PTI".
    pub mitigated: Vec<String>,
    /// Vulnerabilities that are unmitigated, partly mitigated or unknown, in the kernel's words:
    /// "spec_store_bypass: Vulnerable", "mds: SMT vulnerable". A partly mitigated one is in both lists.
    pub unmitigated: Vec<String>,
}

impl Vulnerabilities {
    /// Reads the vulnerabilities. `None` if the kernel does not report them.
    pub(super) fn read(tree: &Tree<'_>) -> Option<Vulnerabilities> {
        let directory = "sys/devices/system/cpu/vulnerabilities";
        let entries = fs::read_dir(tree.root.join(directory)).ok()?;
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        let mut vulnerabilities = Vulnerabilities::default();
        for name in names {
            let Some(line) = tree.line(&format!("{directory}/{name}")) else { continue };
            // The prefix marks a statement about virtual machines that run on this one.
            let status = line.strip_prefix("KVM: ").unwrap_or(&line);
            if let Some(mitigation) = status.strip_prefix("Mitigation: ") {
                let mut clauses = mitigation.split([';', ',']).map(str::trim);
                vulnerabilities.mitigated.push(format!("{name}: {}", clauses.next().unwrap_or_default()));
                let open: Vec<&str> = clauses.filter(|clause| clause.contains("ulnerable")).collect();
                if !open.is_empty() {
                    vulnerabilities.unmitigated.push(format!("{name}: {}", open.join(", ")));
                }
            } else if line.contains("ulnerable") || status.starts_with("Unknown") {
                vulnerabilities.unmitigated.push(format!("{name}: {}", first_clause(&line)));
            }
        }
        Some(vulnerabilities)
    }
}

/// Returns the value of the `mitigations=` boot parameter: "off", "auto,nosmt". `None` if it is not set. The last
/// occurrence counts. Arguments after "--" belong to init.
pub(super) fn boot_parameter(tree: &Tree<'_>) -> Option<String> {
    let line = tree.line("proc/cmdline")?;
    let words = line.split_whitespace().take_while(|word| *word != "--");
    Some(words.filter_map(|word| word.strip_prefix("mitigations=")).last()?.to_owned())
}

fn first_clause(text: &str) -> &str {
    text.split(';').next().unwrap_or(text).trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::environment::tree::write;

    const DIRECTORY: &str = "sys/devices/system/cpu/vulnerabilities";

    #[test]
    fn separates_mitigated_unmitigated_and_unaffected() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree { root: root.path() };
        assert_eq!(Vulnerabilities::read(&tree), None, "kernel does not report vulnerabilities");
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
        let vulnerabilities = Vulnerabilities::read(&tree).unwrap();
        let mitigated = [
            "itlb_multihit: VMX disabled",
            "l1tf: PTE Inversion",
            "spectre_v1: Enhanced IBRS",
            "spectre_v2: Retpolines",
            "taa: Clear CPU buffers",
        ];
        assert_eq!(vulnerabilities.mitigated, mitigated);
        let open = [
            "l1tf: SMT vulnerable",
            "mds: Vulnerable: Clear CPU buffers attempted, no microcode",
            "meltdown: Vulnerable",
            "spectre_v1: PBRSB-eIBRS: Vulnerable, BHI: Vulnerable",
            "srbds: Unknown: Dependent on hypervisor status",
            "taa: SMT vulnerable",
            "tsx: KVM: Vulnerable",
        ];
        assert_eq!(vulnerabilities.unmitigated, open);
    }

    #[test]
    fn last_boot_parameter_wins() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree { root: root.path() };
        assert_eq!(boot_parameter(&tree), None);
        for (line, expected) in [
            ("quiet nomitigations=off\n", None),
            ("mitigations=off quiet\n", Some("off")),
            ("mitigations=off mitigations=auto,nosmt -- mitigations=off\n", Some("auto,nosmt")),
        ] {
            write(root.path(), "proc/cmdline", line);
            assert_eq!(boot_parameter(&tree).as_deref(), expected, "{line}");
        }
    }
}
