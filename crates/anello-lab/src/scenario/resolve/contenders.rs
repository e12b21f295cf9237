//! Who competes: the contenders that a scenario names or gives, as far as this machine has them.

use std::ops::Range;
use std::path::Path;

use super::{Resolver, Resources};
use crate::contender::{Contender, Role};
use crate::scenario::file::{ContenderEntry, InlineContender, Protocol, ScenarioError};
use crate::scenario::{check_base, names_without_twins};
use crate::site::{SupportedTargets, Target};

/// In the words of a command: a core of its own, that of neither servers nor load.
const FURTHER_CORE: &str = "{further_core}";

impl<'a> Resolver<'a> {
    /// All that the scenario asks for and this machine has, without the reference's twin.
    pub(super) fn contenders(&mut self) -> Result<Vec<Contender>, ScenarioError> {
        let built_in = match self.file.protocol() {
            Protocol::Disk => Contender::disk_workers(&self.resources.executable, &self.resources.disk_file),
            Protocol::Http | Protocol::Https => Contender::http_servers(&self.resources.executable),
            Protocol::Echo | Protocol::Idle => Contender::default_contenders(&self.resources.executable),
        };
        let built_in: Vec<Contender> =
            built_in.into_iter().filter(|contender| contender.twin_of.is_none()).collect();
        let mut contenders: Vec<Contender> = Vec::new();
        for entry in &self.file.contenders {
            let span = entry.span();
            let found = match entry.get_ref() {
                ContenderEntry::Name(name) if name == "peers" => self.all_peers(),
                ContenderEntry::Name(name) => self.named(name, &built_in, span.clone())?,
                ContenderEntry::Inline(inline) => vec![self.inline(inline, span.clone())?],
            };
            for contender in found {
                let contender = match self.file.protocol() {
                    Protocol::Https => contender.under_tls(),
                    _ => contender,
                };
                // A peer that was named for itself is one of "peers", too.
                if !contenders.contains(&contender) {
                    if contenders.iter().any(|other| other.name == contender.name) {
                        let why = format!("two contenders are called \"{}\": rename one", contender.name);
                        return self.error(span, why);
                    }
                    contenders.push(contender);
                }
            }
        }
        Ok(contenders)
    }

    /// Of the scenario's protocol: the peers that are built, and the names of those that are not.
    fn peers(&self) -> (&'a [Contender], &'a [String]) {
        let Resources { peers, unbuilt_peers, http_peers, unbuilt_http_peers, .. } = self.resources;
        match self.file.protocol() {
            Protocol::Http | Protocol::Https => (http_peers, unbuilt_http_peers),
            Protocol::Echo | Protocol::Idle | Protocol::Disk => (peers, unbuilt_peers),
        }
    }

    fn all_peers(&mut self) -> Vec<Contender> {
        let (built, unbuilt) = self.peers();
        let (built, unbuilt) = (built.to_vec(), unbuilt.join(", "));
        if !unbuilt.is_empty() {
            self.notes.push(format!(
                "Peers that are not built here and take no part: {unbuilt} (`anello lab peers build`)."
            ));
        }
        built
    }

    fn named(
        &mut self,
        name: &str,
        built_in: &[Contender],
        span: Range<usize>,
    ) -> Result<Vec<Contender>, ScenarioError> {
        let (built, unbuilt) = self.peers();
        let all = || built_in.iter().chain(built);
        if let Some(contender) = all().find(|contender| contender.name == name) {
            return Ok(vec![contender.clone()]);
        }
        if unbuilt.iter().any(|peer| peer == name) {
            self.notes.push(format!(
                "{name} is not built here and takes no part: `anello lab peers build {name}`."
            ));
            return Ok(Vec::new());
        }
        let names: Vec<&str> = all().map(|contender| contender.name.as_str()).collect();
        self.error(
            span,
            format!(
                "no contender is called \"{name}\": choose one of {}, \"peers\" for all that are built, or give a command: \
                 {{ name = \"…\", command = \"…\" }}",
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
            return self.error(span, "a contender needs a name and a command".to_owned());
        };
        let own = inline.role != Role::Peer;
        let contender = Contender {
            name: inline.name.trim().to_owned(),
            role: inline.role,
            arguments: words.collect(),
            driver: inline.driver.clone(),
            version: inline.version.clone().or_else(|| own.then(|| env!("CARGO_PKG_VERSION").to_owned())),
            connections_limit: inline.connections_limit,
            base: inline.against.as_ref().map(|base| base.get_ref().trim().to_owned()),
            ..Contender::new("", Path::new(&program), &[])
        };
        if self.file.protocol() == Protocol::Https && !contender.serves_tls() {
            let why = "a command for https must say where the certificate and its key go: write {certificate} and {key}";
            return self.error(span, why.to_owned());
        }
        match (&inline.serves, self.file.protocol().without_tls()) {
            (None, Protocol::Http) => Ok(contender.serving_by_command()),
            (None, _) => Ok(contender),
            (Some(serves), Protocol::Http) if !serves.get_ref().is_empty() => {
                Ok(Contender { serves: serves.get_ref().clone(), ..contender })
            }
            (Some(serves), Protocol::Http) => {
                self.error(serves.span(), "write what it serves: \"files\", \"fixed\" or both".to_owned())
            }
            (Some(serves), protocol) => {
                let why = format!("the key serves is for http, and the protocol is {protocol}: remove it");
                self.error(serves.span(), why)
            }
        }
    }

    /// Leaves out who has no answer for anything that this scenario asks for, and says so.
    pub(super) fn drop_contenders_without_target(&mut self, contenders: &mut Vec<Contender>) {
        let of_cells = self.file.cells.iter().filter_map(|cell| cell.get_ref().target);
        let requested_targets: Vec<Target> =
            self.file.targets.iter().map(|target| *target.get_ref()).chain(of_cells).collect();
        if self.file.protocol().without_tls() != Protocol::Http || requested_targets.is_empty() {
            return;
        }
        let serves_any = |contender: &Contender| {
            let served = SupportedTargets::of(&contender.serves);
            requested_targets.iter().any(|&target| served.has(target))
        };
        let idle = contenders.iter().filter(|contender| !serves_any(contender));
        let idle: Vec<&str> = idle.map(|contender| contender.name.as_str()).collect();
        if !idle.is_empty() {
            let names = idle.join(", ");
            self.notes
                .push(format!("Left out, since they serve nothing of what is asked for here: {names}."));
            contenders.retain(serves_any);
        }
    }

    /// Under TLS: leaves out who cannot serve it, and says so.
    pub(super) fn drop_contenders_without_tls(&mut self, contenders: &mut Vec<Contender>) {
        if self.file.protocol() != Protocol::Https {
            return;
        }
        let plain = contenders.iter().filter(|contender| !contender.serves_tls());
        let plain: Vec<&str> = plain.map(|contender| contender.name.as_str()).collect();
        if !plain.is_empty() {
            self.notes.push(format!("Left out, since they serve no TLS: {}.", plain.join(", ")));
            contenders.retain(Contender::serves_tls);
        }
    }

    /// Has the reference there twice, as in every run: what the two differ by is what this machine cannot tell. Returns the
    /// name of the reference: of those that the scenario gives the first that takes part, and what was given first if none
    /// does.
    pub(super) fn add_twin(&mut self, contenders: &mut Vec<Contender>) -> String {
        let names = &self.file.reference.get_ref().0;
        let place = |name: &String| contenders.iter().position(|contender| contender.name == *name);
        let first = names.first().cloned().unwrap_or_default();
        let Some((name, place)) = names.iter().find_map(|name| Some((name, place(name)?))) else {
            return first;
        };
        if *name != first {
            self.notes
                .push(format!("{first} takes no part here: the others are compared with {name} instead."));
        }
        contenders.insert(place + 1, contenders[place].twin());
        name.clone()
    }

    /// Puts the core in the place of [`FURTHER_CORE`], and gives it back if anybody asked for it. Where there is none, who
    /// asks for it is left out: on a core of servers or load it would not be what it is called.
    pub(super) fn assign_further_core(
        &mut self,
        contenders: &mut Vec<Contender>,
        core: Option<usize>,
    ) -> Option<usize> {
        let asks = |contender: &Contender| contender.arguments.iter().any(|word| word.contains(FURTHER_CORE));
        let asking: Vec<String> =
            contenders.iter().filter(|one| asks(one)).map(|contender| contender.name.clone()).collect();
        if asking.is_empty() {
            return None;
        }
        let Some(core) = core else {
            contenders.retain(|contender| !asks(contender));
            self.notes.push(format!(
                "Left out, since they need a core beyond those of servers and load, and {} may be used here: {}.",
                self.resources.cores.len(),
                asking.join(", ")
            ));
            return None;
        };
        for word in contenders.iter_mut().flat_map(|contender| &mut contender.arguments) {
            *word = word.replace(FURTHER_CORE, &core.to_string());
        }
        Some(core)
    }

    /// Refuses a contender that is to be set against itself, or against one that this scenario does not have. A peer that
    /// it has and that is not built here is one.
    pub(super) fn check_bases(&self, contenders: &[Contender]) -> Result<(), ScenarioError> {
        let entries = || self.file.contenders.iter().map(toml::Spanned::get_ref);
        let is_asked_for = |peer: &&str| {
            entries()
                .any(|entry| matches!(entry, ContenderEntry::Name(name) if name == peer || name == "peers"))
        };
        let unbuilt = self.peers().1.iter().map(String::as_str);
        let names: Vec<&str> =
            names_without_twins(contenders).into_iter().chain(unbuilt.filter(is_asked_for)).collect();
        for entry in entries() {
            let ContenderEntry::Inline(InlineContender { name, against: Some(base), .. }) = entry else {
                continue;
            };
            if let Err(why) = check_base(name.trim(), base.get_ref().trim(), &names) {
                return self.error(base.span(), why);
            }
        }
        Ok(())
    }

    /// Who is to be set against a contender that takes no part on this machine stands alone, and this is said.
    pub(super) fn clear_missing_bases(&mut self, contenders: &mut [Contender]) {
        let names: Vec<String> = names_without_twins(contenders).into_iter().map(str::to_owned).collect();
        let mut alone = Vec::new();
        for contender in contenders {
            if let Some(base) = contender.base.take_if(|base| !names.contains(base)) {
                alone.push(format!("{} ({base})", contender.name));
            }
        }
        if !alone.is_empty() {
            self.notes.push(format!(
                "Not set against the one that differs in nothing else, since that takes no part here: {}.",
                alone.join(", ")
            ));
        }
    }
}
