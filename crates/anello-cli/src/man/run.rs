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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Returns the expected page titles of a command and its visible subcommands.
    fn titles(command: &Command, title: &str) -> Vec<String> {
        let visible = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
        let of_subcommands =
            visible.flat_map(|subcommand| titles(subcommand, &format!("{title}-{}", subcommand.get_name())));
        std::iter::once(title.to_owned()).chain(of_subcommands).collect()
    }

    #[test]
    fn visible_commands_have_pages() {
        let command = crate::Arguments::command();
        let mut expected: Vec<_> = titles(&command, "anello").iter().map(|title| file_name(title)).collect();
        let pages = pages(command).unwrap();
        let mut file_names: Vec<_> = pages.iter().map(|page| page.file_name.clone()).collect();
        expected.sort();
        file_names.sort();
        assert_eq!(file_names, expected);
        assert!(file_names.contains(&"anello-lab-peers-build.1".to_owned()), "{file_names:?}");
        for Page { file_name, text } in pages {
            let title = file_name.trim_end_matches(".1");
            assert!(text.contains(&format!(".TH {title} 1")) && text.contains(".SH SYNOPSIS"), "{text}");
        }
    }

    #[test]
    fn page_lists_all_flags_of_its_command() {
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
