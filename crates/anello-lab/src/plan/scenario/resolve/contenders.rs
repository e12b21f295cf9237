//! Contenders in a scenario that are available on this machine.

use std::ops::Range;
use std::path::Path;

use crate::plan::contender::{Contender, Role};
use crate::plan::limits::{check_base, names_without_twins};
use crate::plan::scenario::file::{ContenderEntry, InlineContender, Protocol, ScenarioError};
use crate::plan::scenario::resolve::resolver::Resolver;
use crate::plan::scenario::resources::Resources;
use crate::plan::site::{SupportedTargets, Target};

/// Placeholder for a core that is used by neither the servers nor the load generator.
const FURTHER_CORE: &str = "{further_core}";

impl<'a> Resolver<'a> {
    /// Returns all available contenders, excluding the reference's twin.
    pub(super) fn contenders(&mut self) -> Result<Vec<Contender>, ScenarioError> {
        let built_in = match self.protocol {
            Protocol::Disk => Contender::disk_workers(&self.resources.executable, &self.resources.disk_file),
            Protocol::Http | Protocol::Https => Contender::http_servers(&self.resources.executable),
            Protocol::Echo | Protocol::Idle => Contender::default_contenders(&self.resources.executable),
        };
        let built_in: Vec<Contender> =
            built_in.into_iter().filter(|contender| contender.twin_of.is_none()).collect();
        let mut contenders: Vec<Contender> = Vec::new();
        for entry in &self.file.contenders {
            let span = entry.span();
            let entry_contenders = match entry.get_ref() {
                ContenderEntry::Name(name) if name == "peers" => self.all_peers(),
                ContenderEntry::Name(name) => self.named(name, &built_in, span.clone())?,
                ContenderEntry::Inline(inline) => vec![self.inline(inline, span.clone())?],
            };
            for contender in entry_contenders {
                let is_https = self.protocol == Protocol::Https;
                let contender = if is_https { contender.under_tls() } else { contender };
                // A peer that is listed by name is also included in "peers".
                if !contenders.contains(&contender) {
                    if contenders.iter().any(|other| other.name == contender.name) {
                        let message = format!("duplicate contender \"{}\" (rename one)", contender.name);
                        return self.error(span, message);
                    }
                    contenders.push(contender);
                }
            }
        }
        Ok(contenders)
    }

    /// Returns the built peers with the scenario's protocol, and the names of peers that are not built.
    fn peers(&self) -> (&'a [Contender], &'a [String]) {
        let Resources { peers, unbuilt_peers, http_peers, unbuilt_http_peers, .. } = self.resources;
        match self.protocol {
            Protocol::Http | Protocol::Https => (http_peers, unbuilt_http_peers),
            Protocol::Echo | Protocol::Idle | Protocol::Disk => (peers, unbuilt_peers),
        }
    }

    fn all_peers(&mut self) -> Vec<Contender> {
        let (built, unbuilt) = self.peers();
        if !unbuilt.is_empty() {
            let names = unbuilt.join(", ");
            self.notes.push(format!(
                "Peers omitted because they are not built: {names} (`anello lab peers build`)."
            ));
        }
        built.to_vec()
    }

    fn named(
        &mut self,
        name: &str,
        built_in: &[Contender],
        span: Range<usize>,
    ) -> Result<Vec<Contender>, ScenarioError> {
        let (built, unbuilt) = self.peers();
        let candidates = || built_in.iter().chain(built);
        if let Some(contender) = candidates().find(|contender| contender.name == name) {
            return Ok(vec![contender.clone()]);
        }
        if unbuilt.iter().any(|peer| peer == name) {
            self.notes.push(format!(
                "{name} is omitted because it is not built (`anello lab peers build {name}`)."
            ));
            return Ok(Vec::new());
        }
        let names: Vec<&str> = candidates().map(|contender| contender.name.as_str()).collect();
        self.error(
            span,
            format!(
                "unknown contender \"{name}\" (choose one of {}, \"peers\" for all built peers, or a command: \
                 {{ name = \"…\", command = \"…\" }})",
                names.join(", ")
            ),
        )
    }

    fn inline(&self, inline: &InlineContender, span: Range<usize>) -> Result<Contender, ScenarioError> {
        let executable = self.resources.executable.to_string_lossy();
        let mut words = inline.command.split_whitespace().map(|word| {
            word.replace("{anello}", &executable)
                .replace("{file}", &self.resources.disk_file.to_string_lossy())
        });
        let Some(program) = words.next().filter(|_| !inline.name.trim().is_empty()) else {
            return self.error(span, "name and command of a contender must not be empty");
        };
        let is_own = inline.role != Role::Peer;
        let contender = Contender {
            name: inline.name.trim().to_owned(),
            role: inline.role,
            arguments: words.collect(),
            driver: inline.driver.clone(),
            version: inline.version.clone().or_else(|| is_own.then(|| env!("CARGO_PKG_VERSION").to_owned())),
            connections_limit: inline.connections_limit,
            base: inline.base.as_ref().map(|base| base.get_ref().trim().to_owned()),
            ..Contender::new("", Path::new(&program), &[])
        };
        if self.protocol == Protocol::Https && !contender.serves_tls() {
            let message = "an https command needs a certificate and a key (use {certificate} and {key})";
            return self.error(span, message.to_owned());
        }
        match (&inline.serves, self.protocol.without_tls()) {
            (None, Protocol::Http) => Ok(contender.serving_by_command()),
            (None, _) => Ok(contender),
            (Some(serves), Protocol::Http) if !serves.get_ref().is_empty() => {
                Ok(Contender { serves: serves.get_ref().clone(), ..contender })
            }
            (Some(serves), Protocol::Http) => {
                self.error(serves.span(), "serves must not be empty (use \"files\", \"fixed\", \"routes\")")
            }
            (Some(serves), protocol) => {
                let message =
                    format!("the key `serves` requires protocol http, not {protocol} (remove the key)");
                self.error(serves.span(), message)
            }
        }
    }

    /// Removes contenders that serve none of the requested targets and, in an HTTPS scenario, contenders without TLS.
    /// Adds notes about the removed contenders.
    pub(super) fn drop_unsuitable(&mut self, contenders: &mut Vec<Contender>) {
        let cell_targets = self.file.cells.iter().filter_map(|cell| cell.get_ref().target);
        let targets: Vec<Target> =
            self.file.targets.iter().map(|target| *target.get_ref()).chain(cell_targets).collect();
        if self.is_http() && !targets.is_empty() {
            let omitted = drop_unless(contenders, |contender| {
                let supported = SupportedTargets::of(&contender.serves);
                targets.iter().any(|&target| supported.has(target))
            });
            self.note_omitted("Omitted because they serve none of the requested targets", &omitted);
        }
        if self.protocol == Protocol::Https {
            let omitted = drop_unless(contenders, Contender::serves_tls);
            self.note_omitted("Omitted because they do not support TLS", &omitted);
        }
    }

    /// Inserts the twin of the reference, which measures the noise floor. Returns the name of the reference: the
    /// first of the scenario's candidates that participates, or the first candidate if none does.
    pub(super) fn add_twin(&mut self, contenders: &mut Vec<Contender>) -> String {
        let names = self.file.reference.get_ref().candidates();
        let position = |name: &String| contenders.iter().position(|contender| contender.name == *name);
        let first = names.first().cloned().unwrap_or_default();
        let Some((name, index)) = names.iter().find_map(|name| Some((name, position(name)?))) else {
            return first;
        };
        if *name != first {
            self.notes.push(format!("{first} does not participate; the reference is {name} instead."));
        }
        contenders.insert(index + 1, contenders[index].twin());
        name.clone()
    }

    /// If any contender uses [`FURTHER_CORE`], replaces the placeholder with the core and returns the core. If there is
    /// no such core, removes these contenders: on a core that is already in use, their results would not show the
    /// effect of the option under test.
    pub(super) fn assign_further_core(
        &mut self,
        contenders: &mut Vec<Contender>,
        core: Option<usize>,
    ) -> Option<usize> {
        let uses_core = |contender: &Contender| contender.uses(FURTHER_CORE);
        if !contenders.iter().any(uses_core) {
            return None;
        }
        let Some(core) = core else {
            let omitted = drop_unless(contenders, |contender| !uses_core(contender));
            let why = format!(
                "Omitted because they need a core in addition to those of the servers and the load generator, and \
                 only {} cores are usable",
                self.resources.cores.len()
            );
            self.note_omitted(&why, &omitted);
            return None;
        };
        for contender in contenders.iter_mut() {
            *contender = contender.clone().replacing(FURTHER_CORE, &core.to_string());
        }
        Some(core)
    }

    /// Rejects a base that is the contender itself or is not in this scenario. A requested peer is a valid base even if
    /// it is not built.
    pub(super) fn check_bases(&self, contenders: &[Contender]) -> Result<(), ScenarioError> {
        let entries = || self.file.contenders.iter().map(toml::Spanned::get_ref);
        let is_requested = |peer: &&str| {
            entries()
                .any(|entry| matches!(entry, ContenderEntry::Name(name) if name == peer || name == "peers"))
        };
        let unbuilt = self.peers().1.iter().map(String::as_str);
        let names: Vec<&str> =
            names_without_twins(contenders).into_iter().chain(unbuilt.filter(is_requested)).collect();
        for entry in entries() {
            let ContenderEntry::Inline(InlineContender { name, base: Some(base), .. }) = entry else {
                continue;
            };
            if let Err(message) = check_base(name.trim(), base.get_ref().trim(), &names) {
                return self.error(base.span(), message);
            }
        }
        Ok(())
    }

    /// Clears references to bases that are not part of the run, and adds a note about them.
    pub(super) fn clear_missing_bases(&mut self, contenders: &mut [Contender]) {
        let names: Vec<String> = names_without_twins(contenders).into_iter().map(str::to_owned).collect();
        let mut affected = Vec::new();
        for contender in contenders {
            if let Some(base) = contender.base.take_if(|base| !names.contains(base)) {
                affected.push(format!("{} ({base})", contender.name));
            }
        }
        self.note_omitted("Base omitted because it does not participate", &affected);
    }
}

/// Removes the contenders for which `keeps` returns `false`, and returns their names.
fn drop_unless(contenders: &mut Vec<Contender>, keeps: impl Fn(&Contender) -> bool) -> Vec<String> {
    let dropped = contenders.extract_if(.., |contender| !keeps(contender));
    dropped.map(|contender| contender.name).collect()
}
