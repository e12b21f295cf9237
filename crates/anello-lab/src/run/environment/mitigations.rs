//! CPU vulnerabilities: which ones the kernel mitigates, and which ones it reports as unmitigated.

use std::fs;

use crate::run::environment::tree::Tree;

/// CPU vulnerabilities, as the kernel reports them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Vulnerabilities {
    /// Active mitigations, by vulnerability: "meltdown: PTI".
    pub mitigated: Vec<String>,
    /// Vulnerabilities that are unmitigated, partly mitigated or unknown, in the kernel's words:
    /// "spec_store_bypass: Vulnerable", "mds: SMT vulnerable". A partly mitigated vulnerability is in both lists.
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
            // The prefix marks a statement about virtual machines hosted by this machine.
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
/// occurrence takes effect. Arguments after "--" belong to init.
pub(super) fn boot_parameter(tree: &Tree<'_>) -> Option<String> {
    let line = tree.line("proc/cmdline")?;
    let words = line.split_whitespace().take_while(|word| *word != "--");
    Some(words.filter_map(|word| word.strip_prefix("mitigations=")).last()?.to_owned())
}

fn first_clause(text: &str) -> &str {
    text.split(';').next().unwrap_or(text).trim()
}
