use std::ffi::OsString;
use std::path::Path;

use clap::{ArgAction, Args, Command};

use super::key::{CHECK, CONFIG, DIRECTORY, HTTP, Key, keys};
use super::read::{Failure, read_matches};
use super::{Configuration, file, key};
use crate::http::Arguments;

fn command() -> Command {
    Command::new("anello")
        .subcommand(Arguments::augment_args(Command::new(HTTP)))
        .subcommand(Command::new("echo"))
}

fn http() -> Command {
    command().find_subcommand(HTTP).expect("http subcommand").clone()
}

/// Returns the problems in a configuration file.
fn problems(text: &str) -> Vec<String> {
    file::parse(text, Path::new("site.toml"), &http()).problems
}

/// Returns the only problem in a configuration file.
fn problem(text: &str) -> String {
    let problems = problems(text);
    let [problem] = &problems[..] else { panic!("{text:?}: {problems:?}") };
    problem.clone()
}

/// Merges a file with arguments. Returns the non-default settings or the problems.
fn read_with(file: &str, arguments: &[&str]) -> Result<Vec<String>, Vec<String>> {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("site.toml");
    std::fs::write(&path, file).expect("write file");
    let program = ["anello", "http", "--config"].map(OsString::from).into_iter();
    let all = program.chain([path.into_os_string()]).chain(arguments.iter().map(OsString::from));
    match read_matches(&command(), &all.collect::<Vec<_>>()) {
        Ok((_, configuration)) if configuration.problems.is_empty() => Ok(configuration.settings),
        Ok((_, configuration)) => Err(configuration.problems),
        Err(Failure::File(problems)) => Err(problems),
        Err(Failure::CommandLine(error)) => Err(vec![error.to_string()]),
    }
}

#[test]
fn every_flag_has_key() {
    let http = http();
    for arg in http.get_arguments() {
        let name = key::name(arg);
        let messages = problem(&format!("{name} = 1979-05-27"));
        if [CONFIG, CHECK].contains(&name) {
            assert!(messages.contains("only valid on the command line"), "{messages}");
        } else {
            assert!(messages.contains("expected ") && messages.contains("not a date"), "{messages}");
        }
    }
    assert!(Key::find(&http, DIRECTORY).is_some_and(|key| key.arg.is_positional()));
}

#[test]
fn file_accepts_every_default_and_choice() {
    let http = http();
    let mut value_count = 0;
    for key in keys(&http) {
        let choices = key.arg.get_possible_values();
        let choices = choices.iter().map(|choice| choice.get_name().to_owned());
        let defaults = key.arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
        let is_switch = !key.arg.get_action().takes_values();
        let values: Vec<String> = match (is_switch, key.is_number()) {
            (true, _) => vec!["true".into(), "false".into()],
            (false, true) => defaults.collect(),
            (false, false) => choices.chain(defaults).map(|value| format!("{value:?}")).collect(),
        };
        for value in values {
            assert_eq!(problems(&format!("{} = {value}", key.name())), [""; 0]);
            value_count += 1;
        }
    }
    assert!(value_count > 40, "{value_count}");
}

#[test]
fn largest_number_of_every_flag_round_trips() {
    let http = http();
    let mut beyond_signed = 0;
    for key in keys(&http).filter(Key::is_number) {
        let largest = [u64::MAX, i64::MAX as u64, u64::from(u32::MAX), i32::MAX as u64, u64::from(u16::MAX)];
        let settings = largest.iter().find_map(|number| {
            // Some flags require sqpoll.
            let file = "directory = \"public\"\nsqpoll = 1";
            let settings = read_with(file, &[&format!("--{}=+0{number}", key.name())]).ok()?;
            beyond_signed += usize::from(*number == u64::MAX);
            assert!(settings.contains(&format!("{} = {number}", key.name())), "{settings:?}");
            Some(settings)
        });
        let settings = settings.unwrap_or_else(|| panic!("{} accepts none of {largest:?}", key.name()));
        assert_eq!(read_with(&settings.join("\n"), &[]), Ok(settings));
    }
    assert!(beyond_signed > 5, "{beyond_signed}");
}

#[test]
fn location_names_file_line_or_flag() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("site.toml");
    std::fs::write(&path, "directory = \"a\"\n\nindex = [\"x/y\"]\nlisting = true").expect("write file");
    let config = path.to_str().expect("UTF-8 path");
    let arguments =
        ["anello", "http", "--config", config, "--cors-origin", "x", "--index", "z"].map(OsString::from);
    let (_, configuration) = read_matches(&command(), &arguments).expect("valid");
    assert_eq!(configuration.location("listing"), format!("{config}:4: listing"));
    assert_eq!(configuration.location("index"), "--index");
    assert_eq!(configuration.location("cors-origin"), "--cors-origin");
    assert_eq!(Configuration::default().location("directory"), "directory");
}

#[test]
fn every_flag_action_is_supported_by_keys() {
    for key in keys(&http()) {
        let action = key.arg.get_action();
        assert!(
            matches!(action, ArgAction::Set | ArgAction::Append | ArgAction::SetTrue),
            "{}: {action:?}",
            key.name()
        );
    }
}
