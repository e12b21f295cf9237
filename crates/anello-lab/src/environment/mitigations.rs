//! Faults of the CPU: against which of them the kernel does something, and to which it says the machine is vulnerable.

use std::fs;

use super::Tree;

/// What the kernel says of the faults that it knows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// What is done, by fault: "meltdown: PTI".
    pub mitigated: Vec<String>,
    /// The faults against which nothing that helps is done, or not everywhere, or of which the kernel does not know, in
    /// its own words: "spec_store_bypass: Vulnerable", "mds: SMT vulnerable". One that is only done something against in
    /// part stands in both lists.
    pub open: Vec<String>,
}

impl Faults {
    /// None if the kernel does not tell.
    pub(super) fn of(tree: &Tree<'_>) -> Option<Faults> {
        let directory = "sys/devices/system/cpu/vulnerabilities";
        let entries = fs::read_dir(tree.root.join(directory)).ok()?;
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        let mut faults = Faults::default();
        for name in names {
            let Some(line) = tree.line(&format!("{directory}/{name}")) else { continue };
            // What is said of virtual machines that this one may run.
            let said = line.strip_prefix("KVM: ").unwrap_or(&line);
            if let Some(mitigation) = said.strip_prefix("Mitigation: ") {
                let mut clauses = mitigation.split([';', ',']).map(str::trim);
                faults.mitigated.push(format!("{name}: {}", clauses.next().unwrap_or_default()));
                let open: Vec<&str> = clauses.filter(|clause| clause.contains("ulnerable")).collect();
                if !open.is_empty() {
                    faults.open.push(format!("{name}: {}", open.join(", ")));
                }
            } else if line.contains("ulnerable") || said.starts_with("Unknown") {
                faults.open.push(format!("{name}: {}", first_clause(&line)));
            }
        }
        Some(faults)
    }
}

/// What the kernel's command line says of all mitigations at once: "off", "auto,nosmt"; none if it says nothing. Of
/// several words the last holds; what follows "--" is not the kernel's.
pub(super) fn chosen_at_boot(tree: &Tree<'_>) -> Option<String> {
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
    use crate::environment::tests::write;

    const FOLDER: &str = "sys/devices/system/cpu/vulnerabilities";

    #[test]
    fn what_is_open_is_not_taken_for_what_is_not_there() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree { root: root.path() };
        assert_eq!(Faults::of(&tree), None, "a kernel that does not tell");
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
            write(root.path(), &format!("{FOLDER}/{name}"), &format!("{line}\n"));
        }
        let faults = Faults::of(&tree).unwrap();
        let mitigated = [
            "itlb_multihit: VMX disabled",
            "l1tf: PTE Inversion",
            "spectre_v1: Enhanced IBRS",
            "spectre_v2: Retpolines",
            "taa: Clear CPU buffers",
        ];
        assert_eq!(faults.mitigated, mitigated);
        let open = [
            "l1tf: SMT vulnerable",
            "mds: Vulnerable: Clear CPU buffers attempted, no microcode",
            "meltdown: Vulnerable",
            "spectre_v1: PBRSB-eIBRS: Vulnerable, BHI: Vulnerable",
            "srbds: Unknown: Dependent on hypervisor status",
            "taa: SMT vulnerable",
            "tsx: KVM: Vulnerable",
        ];
        assert_eq!(faults.open, open);
    }

    #[test]
    fn the_last_word_on_the_kernels_command_line_holds() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree { root: root.path() };
        assert_eq!(chosen_at_boot(&tree), None);
        for (line, expected) in [
            ("quiet nomitigations=off\n", None),
            ("mitigations=off quiet\n", Some("off")),
            ("mitigations=off mitigations=auto,nosmt -- mitigations=off\n", Some("auto,nosmt")),
        ] {
            write(root.path(), "proc/cmdline", line);
            assert_eq!(chosen_at_boot(&tree).as_deref(), expected, "{line}");
        }
    }
}
