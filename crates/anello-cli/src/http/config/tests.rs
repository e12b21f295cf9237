use std::ffi::OsString;
use std::path::Path;

use clap::error::ErrorKind;
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

/// Returns the problems of a configuration file.
fn problems(text: &str) -> Vec<String> {
    file::parse(text, Path::new("site.toml"), &http()).problems
}

/// Returns the only problem of a configuration file.
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
fn file_values_equal_flag_values() {
    let file = r#"
directory = "-public"
addr = "0.0.0.0:80"     # a comment
"listing" = true
dotfiles = false
max-connections = 0x10
cors-origin = ["https://a.example", "https://b.example"]
index = "start.html"
precompressed = true
keep-alive-timeout = "5s"
sqpoll = 100
send-timeout = "30s"
"#;
    let expected = [
        r#"directory = "./-public""#,
        r#"addr = "0.0.0.0:80""#,
        r#"index = ["start.html"]"#,
        "listing = true",
        r#"precompressed = ["br", "zstd", "gzip"]"#,
        r#"cors-origin = ["https://a.example", "https://b.example"]"#,
        "max-connections = 16",
        r#"keep-alive-timeout = "5s""#,
        "sqpoll = 100",
    ];
    assert_eq!(read_with(file, &[]), Ok(expected.map(String::from).to_vec()));
    // The settings are themselves a file with the same settings.
    assert_eq!(read_with(&expected.join("\n"), &[]), Ok(expected.map(String::from).to_vec()));
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
fn command_line_overrides_file() {
    let file =
        "directory = \"a\"\naddr = \"127.0.0.1:1\"\nindex = [\"a\", \"b\"]\nlisting = true\nsqpoll = 1";
    let settings =
        read_with(file, &["b", "--index", "c", "--addr=127.0.0.1:2", "--sqpoll-core", "1"]).expect("valid");
    let expected = [
        "directory = \"b\"",
        "addr = \"127.0.0.1:2\"",
        "index = [\"c\"]",
        "listing = true",
        "sqpoll = 1",
        "sqpoll-core = 1",
    ];
    assert_eq!(settings, expected);
    assert_eq!(read_with(file, &["--", "-c"]).expect("valid")[0], "directory = \"-c\"");
    // Also if the value on the command line is the default.
    assert_eq!(
        read_with("directory = \"a\"\ndriver = \"epoll\"", &["--driver", "auto"]),
        Ok(vec!["directory = \"a\"".into()])
    );
}

#[test]
fn problems_name_line_and_remedy() {
    for (text, expected_problem) in [
        ("\n\nlistings = true", "site.toml:3: listings: unknown key (did you mean listing?)"),
        ("keep_alive_timeout = \"5s\"", "(did you mean keep-alive-timeout?)"),
        ("zzzzzzzz = 1", "keys are the long flags listed by anello http --help"),
        ("[tls]\ncert = \"a\"", "site.toml:1: tls: sections are not supported"),
        ("tls.cert = \"a\"", "sections are not supported"),
        ("check = true", "site.toml:1: check: only valid on the command line"),
        ("help = true", "unknown key"),
        ("listing = \"yes\"", "listing: expected a boolean, not a string (for example listing = true)"),
        ("max-connections = \"10\"", "expected an integer, not a string (for example max-connections = 1)"),
        ("max-connections = 1.5", "not a float"),
        ("max-connections = -1", "max-connections: invalid value \"-1\": "),
        ("addr = 8080", "expected a string, not an integer (for example addr = \"ADDR\")"),
        ("addr = \"localhost\"", "addr: invalid address \"localhost\" (expected 127.0.0.1:7000"),
        ("addr = [\"127.0.0.1:80\"]", "expected a string, not a list"),
        ("tls-cert = true", "expected a string, not a boolean (for example tls-cert = \"FILE\")"),
        (
            "keep-alive-timeout = 5",
            "expected a string, not an integer (for example keep-alive-timeout = \"60s\")",
        ),
        (
            "keep-alive-timeout = \"5\"",
            "keep-alive-timeout: invalid duration \"5\": missing unit (for example 5s or 5ms)",
        ),
        ("driver = \"kqueue\"", "driver: invalid value \"kqueue\" (expected one of auto, uring, epoll)"),
        ("index = []", "empty list"),
        ("index = [1]", "expected a list of strings, not an integer (for example index = [\"index.html\"])"),
        ("cache-control = [\"*.css\"]", "\"*.css\": missing ="),
        ("directory = \"\"", "directory: "),
        ("listing = ", "site.toml:1: invalid TOML: "),
        ("listing = true\nlisting = true", "site.toml:2: invalid TOML: "),
    ] {
        let messages = problem(text);
        assert!(messages.contains(expected_problem), "{messages}\n{expected_problem}");
        assert!(messages.starts_with("site.toml:"), "{messages}");
    }
}

#[test]
fn all_problems_are_reported_in_file_order() {
    let messages = problems("listings = true\naddr = 80\nlisting = true\n\ndriver = \"x\"");
    let locations: Vec<&str> = messages.iter().map(|problem| &problem[..12]).collect();
    assert_eq!(locations, ["site.toml:1:", "site.toml:2:", "site.toml:5:"], "{messages:?}");
}

#[test]
fn every_invalid_list_item_is_reported() {
    let messages = problems(
        "cache-control = ['*.css', 'a=b', 1, '*.js']\ncors-origin = ['https://example.org', 2]\nmax-connections = 0",
    );
    assert_eq!(messages.len(), 3, "{messages:?}");
    let messages =
        problems("cache-control = ['*.css', 'a=b', '*.js']\nmax-connections = 0\nmax-listing-entries = -1");
    let [first, second, zero, negative] = &messages[..] else { panic!("{messages:?}") };
    assert!(first.starts_with("site.toml:1: cache-control: invalid value \"*.css\": missing ="), "{first}");
    assert!(second.starts_with("site.toml:1: cache-control: invalid value \"*.js\": missing ="), "{second}");
    assert!(zero.contains("\"0\"") && zero.contains("at least 1"), "{zero}");
    assert!(negative.contains("\"-1\"") && negative.contains("expected digits only"), "{negative}");
}

#[test]
fn epoll_in_file_rejects_uring_flags() {
    for (file, arguments) in [
        ("driver = 'epoll'\nsqpoll = 10", &["."][..]),
        ("sqpoll = 10", &["--driver", "epoll", "."]),
        ("driver = 'epoll'", &["--sqpoll", "10", "."]),
    ] {
        let messages = read_with(file, arguments).unwrap_err();
        assert!(
            messages.iter().any(|problem| problem.contains("--sqpoll") && problem.contains("--driver uring")),
            "{messages:?}"
        );
    }
    assert!(read_with("spin = '10h'", &["."]).unwrap_err()[0].contains("at most 1s"));
}

#[test]
fn flag_conflict_names_file() {
    let messages = read_with("directory = \".\"\ntls-cert = \"cert.pem\"", &[]).unwrap_err();
    assert!(messages[0].contains("site.toml, with the command line: "), "{messages:?}");
    assert!(messages[0].ends_with("not provided: --tls-key <FILE>"), "{messages:?}");
    assert_eq!(
        read_with("directory = \".\"\ntls-cert = \"cert.pem\"", &["--tls-key", "key.pem"])
            .expect("valid")
            .len(),
        3
    );
    let messages = read_with("listing = true", &[]).unwrap_err();
    assert!(messages[0].contains("missing (set it in the file, as in directory = "), "{messages:?}");
    // Consequences of another problem are not reported.
    for file in ["directory = 1", "tls-cert = \"cert.pem\"\ntls-key = 1\ndirectory = \".\"", "directory"] {
        let messages = read_with(file, &[]).unwrap_err();
        assert_eq!(messages.len(), 1, "{messages:?}");
    }
}

#[test]
fn invalid_command_line_is_reported_by_clap() {
    for arguments in
        [&["--listings"][..], &["--addr", "x"], &["a", "b"], &["--addr=[::1]:1", "--addr=[::1]:2"]]
    {
        let messages = read_with("directory = \"a\"\naddr = \"127.0.0.1:80\"", arguments).unwrap_err();
        assert!(messages[0].contains("error: "), "{messages:?}");
    }
    let read = |arguments: &[&str]| {
        read_matches(&command(), &arguments.iter().map(OsString::from).collect::<Vec<_>>())
    };
    let failure = |arguments: &[&str]| match read(arguments) {
        Err(Failure::CommandLine(error)) => error,
        other => panic!("{arguments:?}: {other:?}"),
    };
    assert_eq!(failure(&["anello", "http"]).kind(), ErrorKind::MissingRequiredArgument);
    assert_eq!(failure(&["anello", "http", "--config"]).kind(), ErrorKind::InvalidValue);
    assert_eq!(failure(&["anello", "http", "--config", "x", "--help"]).kind(), ErrorKind::DisplayHelp);
    assert_eq!(failure(&["anello", "echo", "--config", "x"]).kind(), ErrorKind::UnknownArgument);
    let (_, configuration) =
        read(&["anello", "http", "a", "--config", "/no/such.toml"]).expect("valid command line");
    assert!(configuration.problems[0].starts_with("/no/such.toml: "), "{:?}", configuration.problems);
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
