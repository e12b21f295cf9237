//! Renders the manual pages.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;

use super::flags::Arguments;
use crate::common::error::{Context, invalid_input};
use crate::common::output;

/// Prints one manual page, or writes all of them.
pub fn run(arguments: &Arguments, command: Command) -> io::Result<ExitCode> {
    let pages = pages(command)?;
    match &arguments.out {
        Some(directory) => write(&pages, directory)?,
        None => {
            let title = [&["anello".to_owned()], &arguments.command[..]].concat().join("-");
            let page = pages.iter().find(|page| page.title == title).ok_or_else(|| {
                let command = arguments.command.join(" ");
                invalid_input(format!("unknown command {command:?} (anello --help lists all commands)"))
            })?;
            output::show(&page.text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A manual page in roff format.
struct Page {
    title: String,
    text: String,
}

/// Returns the pages of a command and all its visible subcommands.
fn pages(command: Command) -> io::Result<Vec<Page>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let source = format!("anello {}", command.get_version().unwrap_or_default());
    let mut pages = Vec::new();
    let mut pending = vec![command];
    while let Some(command) = pending.pop() {
        pending.extend(command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).cloned());
        let title = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        let mut text = Vec::new();
        Man::new(command).source(&source).manual("anello").render(&mut text)?;
        pages.push(Page { title, text: String::from_utf8_lossy(&text).into_owned() });
    }
    Ok(pages)
}

fn write(pages: &[Page], directory: &Path) -> io::Result<()> {
    let what = |path: &Path| format!("cannot write {}", path.display());
    let remedy = "choose another --out";
    fs::create_dir_all(directory).context_and_remedy(what(directory), remedy)?;
    for page in pages {
        let path = directory.join(format!("{}.1", page.title));
        fs::write(&path, &page.text).context_and_remedy(what(&path), remedy)?;
    }
    Ok(())
}
