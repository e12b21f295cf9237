//! `anello man`: manual pages, made from the definition of the command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;

use crate::output;

/// Print a manual page, or write those of all commands.
///
/// anello man http | man -l - shows one; anello man --out /usr/local/share/man/man1 installs all.
#[derive(clap::Args)]
pub struct Arguments {
    /// The command whose page is printed, as in lab run; anello itself by default.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,

    /// Write the pages of all commands into this folder, which is made if it is not there.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out: Option<PathBuf>,
}

/// Prints or writes them.
pub fn run(arguments: &Arguments, command: Command) -> io::Result<ExitCode> {
    let pages = pages(command)?;
    match &arguments.out {
        Some(folder) => write(&pages, folder)?,
        None => {
            let wanted = file_name(&[&["anello".to_owned()], &arguments.command[..]].concat().join("-"));
            let page = pages.iter().find(|page| page.file_name == wanted).ok_or_else(|| {
                let asked = arguments.command.join(" ");
                let why = format!("there is no command {asked:?}: anello --help shows all");
                io::Error::new(io::ErrorKind::InvalidInput, why)
            })?;
            output::show(&page.text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One manual page.
struct Page {
    file_name: String,
    text: String,
}

fn file_name(title: &str) -> String {
    format!("{title}.1")
}

/// The pages of a command and all commands below it that are shown.
fn pages(command: Command) -> io::Result<Vec<Page>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let source = format!("anello {}", command.get_version().unwrap_or_default());
    let mut pages = Vec::new();
    let mut below = vec![command];
    while let Some(command) = below.pop() {
        below.extend(command.get_subcommands().filter(|found| !found.is_hide_set()).cloned());
        let title = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        let mut text = Vec::new();
        Man::new(command).source(&source).manual("anello").render(&mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        pages.push(Page { file_name: file_name(&title), text });
    }
    Ok(pages)
}

fn write(pages: &[Page], folder: &Path) -> io::Result<()> {
    let named = |path: &Path, error: &io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}: choose another --out", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| named(folder, &error))?;
    for page in pages {
        let path = folder.join(&page.file_name);
        fs::write(&path, &page.text).map_err(|error| named(&path, &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The titles of the pages that there must be.
    fn titles(command: &Command, title: &str) -> Vec<String> {
        let shown = command.get_subcommands().filter(|found| !found.is_hide_set());
        let below = shown.flat_map(|found| titles(found, &format!("{title}-{}", found.get_name())));
        std::iter::once(title.to_owned()).chain(below).collect()
    }

    #[test]
    fn every_command_that_is_shown_has_a_page() {
        let command = crate::Arguments::command();
        let mut expected: Vec<_> = titles(&command, "anello").iter().map(|title| file_name(title)).collect();
        let pages = pages(command).unwrap();
        let mut found: Vec<_> = pages.iter().map(|page| page.file_name.clone()).collect();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        assert!(found.contains(&"anello-lab-peers-build.1".to_owned()), "{found:?}");
        for Page { file_name, text } in pages {
            let title = file_name.trim_end_matches(".1");
            assert!(text.contains(&format!(".TH {title} 1")) && text.contains(".SH SYNOPSIS"), "{text}");
        }
    }

    #[test]
    fn a_page_tells_every_flag_of_its_command() {
        let command = crate::Arguments::command();
        let http = command.find_subcommand("http").unwrap().clone();
        let pages = pages(command).unwrap();
        let page = pages.iter().find(|page| page.file_name == "anello-http.1").unwrap();
        for long in http.get_arguments().filter_map(|arg| arg.get_long()) {
            let flag = format!("\\-\\-{}", long.replace('-', "\\-"));
            assert!(page.text.contains(&flag), "{flag}");
        }
    }
}
