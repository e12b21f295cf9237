//! Renders the manual pages.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;

use super::flags::Arguments;
use crate::common::output;

/// Prints one manual page, or writes all of them.
pub fn run(arguments: &Arguments, command: Command) -> io::Result<ExitCode> {
    let pages = pages(command)?;
    match &arguments.out {
        Some(directory) => write(&pages, directory)?,
        None => {
            let file_name = file_name(&[&["anello".to_owned()], &arguments.command[..]].concat().join("-"));
            let page = pages.iter().find(|page| page.file_name == file_name).ok_or_else(|| {
                let command = arguments.command.join(" ");
                let message = format!("unknown command {command:?} (anello --help lists all commands)");
                io::Error::new(io::ErrorKind::InvalidInput, message)
            })?;
            output::show(&page.text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A manual page in roff format.
struct Page {
    file_name: String,
    text: String,
}

fn file_name(title: &str) -> String {
    format!("{title}.1")
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
        let text = String::from_utf8_lossy(&text).into_owned();
        pages.push(Page { file_name: file_name(&title), text });
    }
    Ok(pages)
}

fn write(pages: &[Page], directory: &Path) -> io::Result<()> {
    let with_path = |path: &Path, error: &io::Error| {
        let message = format!("cannot write {}: {error} (choose another --out)", path.display());
        io::Error::new(error.kind(), message)
    };
    fs::create_dir_all(directory).map_err(|error| with_path(directory, &error))?;
    for page in pages {
        let path = directory.join(&page.file_name);
        fs::write(&path, &page.text).map_err(|error| with_path(&path, &error))?;
    }
    Ok(())
}
