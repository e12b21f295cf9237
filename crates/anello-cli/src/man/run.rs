//! Printing or writing the manual pages.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;

use super::flags::Arguments;
use crate::common::error::{Context, usage_error};
use crate::common::output;

pub fn run(arguments: &Arguments, command: Command) -> io::Result<ExitCode> {
    let pages = pages(command)?;
    if let Some(directory) = &arguments.out {
        let what = |path: &Path| format!("cannot write {}", path.display());
        let remedy = "choose another --out";
        fs::create_dir_all(directory).context_and_remedy(what(directory), remedy)?;
        for (title, text) in &pages {
            let path = directory.join(format!("{title}.1"));
            fs::write(&path, text).context_and_remedy(what(&path), remedy)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let title = [&["anello".to_owned()], &arguments.command[..]].concat().join("-");
    let page = pages.get(&title).ok_or_else(|| {
        let command = arguments.command.join(" ");
        usage_error(format!("unknown command {command:?} (anello --help lists all commands)"))
    })?;
    output::show(&String::from_utf8_lossy(page)).map(|()| ExitCode::SUCCESS)
}

/// Returns the pages of a command and of all its visible subcommands in roff format, keyed by title.
fn pages(command: Command) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let source = format!("anello {}", command.get_version().unwrap_or_default());
    let mut pages = BTreeMap::new();
    let mut pending = vec![command];
    while let Some(command) = pending.pop() {
        pending.extend(command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).cloned());
        let title = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        let mut text = Vec::new();
        Man::new(command).source(&source).manual("anello").render(&mut text)?;
        pages.insert(title, text);
    }
    Ok(pages)
}
