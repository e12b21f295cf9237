use std::path::Path;

use clap::ArgAction;

use super::key::{Key, keys};
use super::*;
use crate::Arguments;

fn command() -> Command {
    Arguments::command()
}

fn http() -> Command {
    command().find_subcommand(HTTP).expect("it is there").clone()
}

/// What is wrong in a text.
fn problems(text: &str) -> Vec<String> {
    file::parse(text, Path::new("site.toml"), &http()).problems
}

/// What is wrong in a text, which is one thing.
fn problem(text: &str) -> String {
    let problems = problems(text);
    let [problem] = &problems[..] else { panic!("{text:?}: {problems:?}") };
    problem.clone()
}

/// What arguments make of a file: settings, or what is wrong.
fn read_with(file: &str, given: &[&str]) -> Result<Vec<String>, Vec<String>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("site.toml");
    std::fs::write(&path, file).expect("a file");
    let words = ["anello", "http", "--config"].map(OsString::from).into_iter();
    let all = words.chain([path.into_os_string()]).chain(given.iter().map(OsString::from));
    match read_matches(&command(), &all.collect::<Vec<_>>()) {
        Ok((_, configuration)) if configuration.problems.is_empty() => Ok(configuration.settings),
        Ok((_, configuration)) => Err(configuration.problems),
        Err(Failure::File(problems)) => Err(problems),
        Err(Failure::CommandLine(error)) => Err(vec![error.to_string()]),
    }
}

#[test]
fn every_flag_is_a_key() {
    let http = http();
    for arg in http.get_arguments() {
        let name = key::name(arg);
        let reported_text = problem(&format!("{name} = 1979-05-27"));
        if [CONFIG, CHECK].contains(&name) {
            assert!(reported_text.contains("for the command line alone"), "{reported_text}");
        } else {
            assert!(
                reported_text.contains("it takes ") && reported_text.contains("not a date"),
                "{reported_text}"
            );
        }
    }
    assert!(Key::find(&http, FOLDER).is_some_and(|key| key.arg.is_positional()));
}

#[test]
fn every_default_and_every_choice_may_stand_in_a_file() {
    let http = http();
    let mut tried = 0;
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
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried}");
}

#[test]
fn values_become_what_the_flags_would_have_made_of_them() {
    let file = r#"
folder = "-public"
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
        r#"folder = "./-public""#,
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
    // What was made of it says the same.
    assert_eq!(read_with(&expected.join("\n"), &[]), Ok(expected.map(String::from).to_vec()));
}

#[test]
fn the_largest_number_of_every_flag_is_written_as_it_is_read() {
    let http = http();
    let mut beyond_signed = 0;
    for key in keys(&http).filter(Key::is_number) {
        let largest = [u64::MAX, i64::MAX as u64, u64::from(u32::MAX), i32::MAX as u64, u64::from(u16::MAX)];
        let written = largest.iter().find_map(|number| {
            // Some flags want this one beside them.
            let file = "folder = \"public\"\nsqpoll = 1";
            let set = read_with(file, &[&format!("--{}=+0{number}", key.name())]).ok()?;
            beyond_signed += usize::from(*number == u64::MAX);
            assert!(set.contains(&format!("{} = {number}", key.name())), "{set:?}");
            Some(set)
        });
        let written = written.unwrap_or_else(|| panic!("{} takes none of {largest:?}", key.name()));
        assert_eq!(read_with(&written.join("\n"), &[]), Ok(written));
    }
    assert!(beyond_signed > 5, "{beyond_signed}");
}

#[test]
fn the_command_line_wins() {
    let file = "folder = \"a\"\naddr = \"127.0.0.1:1\"\nindex = [\"a\", \"b\"]\nlisting = true\nsqpoll = 1";
    let set =
        read_with(file, &["b", "--index", "c", "--addr=127.0.0.1:2", "--sqpoll-core", "1"]).expect("well");
    let expected = [
        "folder = \"b\"",
        "addr = \"127.0.0.1:2\"",
        "index = [\"c\"]",
        "listing = true",
        "sqpoll = 1",
        "sqpoll-core = 1",
    ];
    assert_eq!(set, expected);
    assert_eq!(read_with(file, &["--", "-c"]).expect("well")[0], "folder = \"-c\"");
    // Also where what it says is the default.
    assert_eq!(
        read_with("folder = \"a\"\ndriver = \"epoll\"", &["--driver", "auto"]),
        Ok(vec!["folder = \"a\"".into()])
    );
}

#[test]
fn what_is_wrong_is_told_with_its_line_and_remedy() {
    for (text, reported) in [
        ("\n\nlistings = true", "site.toml:3: listings: there is no such flag: is listing meant?"),
        ("keep_alive_timeout = \"5s\"", "is keep-alive-timeout meant?"),
        ("zzzzzzzz = 1", "keys are the long flags that anello http --help shows"),
        ("[tls]\ncert = \"a\"", "site.toml:1: tls: there are no sections"),
        ("tls.cert = \"a\"", "there are no sections"),
        ("check = true", "site.toml:1: check: it is for the command line alone"),
        ("help = true", "there is no such flag"),
        ("listing = \"yes\"", "listing: it takes true or false, not text: write it as in listing = true"),
        ("max-connections = \"10\"", "it takes a whole number, not text: write it as in max-connections = 1"),
        ("max-connections = 1.5", "not a fraction"),
        ("max-connections = -1", "max-connections: \"-1\": "),
        ("addr = 8080", "it takes text, not a number: write it as in addr = \"ADDR\""),
        ("addr = \"localhost\"", "addr: \"localhost\" is no address: write 127.0.0.1:7000"),
        ("addr = [\"127.0.0.1:80\"]", "it takes text, not a list"),
        ("tls-cert = true", "it takes text, not true or false: write it as in tls-cert = \"FILE\""),
        (
            "keep-alive-timeout = 5",
            "it takes text, not a number: write it as in keep-alive-timeout = \"60s\"",
        ),
        ("keep-alive-timeout = \"5\"", "keep-alive-timeout: \"5\" lacks a unit: write 5s or 5ms"),
        ("driver = \"kqueue\"", "driver: \"kqueue\" is none of its values: choose from auto, uring, epoll"),
        ("index = []", "an empty list says nothing"),
        ("index = [1]", "it takes a list of texts, not a number: write it as in index = [\"index.html\"]"),
        ("cache-control = [\"*.css\"]", "\"*.css\" lacks a ="),
        ("folder = \"\"", "folder: "),
        ("listing = ", "site.toml:1: not TOML: "),
        ("listing = true\nlisting = true", "site.toml:2: not TOML: "),
    ] {
        let reported_text = problem(text);
        assert!(reported_text.contains(reported), "{reported_text}\n{reported}");
        assert!(reported_text.starts_with("site.toml:"), "{reported_text}");
    }
}

#[test]
fn all_that_is_wrong_is_told_at_once_and_in_order() {
    let reported_text = problems("listings = true\naddr = 80\nlisting = true\n\ndriver = \"x\"");
    let locations: Vec<&str> = reported_text.iter().map(|problem| &problem[..12]).collect();
    assert_eq!(locations, ["site.toml:1:", "site.toml:2:", "site.toml:5:"], "{reported_text:?}");
}

#[test]
fn every_wrong_value_of_a_list_is_told() {
    let reported_text = problems(
        "cache-control = ['*.css', 'a=b', 1, '*.js']\ncors-origin = ['https://example.org', 2]\nmax-connections = 0",
    );
    assert_eq!(reported_text.len(), 3, "{reported_text:?}");
    let reported_text =
        problems("cache-control = ['*.css', 'a=b', '*.js']\nmax-connections = 0\nmax-listing-entries = -1");
    let [first, second, zero, negative] = &reported_text[..] else { panic!("{reported_text:?}") };
    assert!(first.starts_with("site.toml:1: cache-control: \"*.css\" lacks a ="), "{first}");
    assert!(second.starts_with("site.toml:1: cache-control: \"*.js\" lacks a ="), "{second}");
    assert!(zero.contains("\"0\"") && zero.contains("at least 1"), "{zero}");
    assert!(negative.contains("\"-1\"") && negative.contains("write digits alone"), "{negative}");
}

#[test]
fn flags_for_io_uring_are_refused_on_epoll_in_files() {
    for (file, given) in [
        ("driver = 'epoll'\nsqpoll = 10", &["."][..]),
        ("sqpoll = 10", &["--driver", "epoll", "."]),
        ("driver = 'epoll'", &["--sqpoll", "10", "."]),
    ] {
        let reported_text = read_with(file, given).unwrap_err();
        assert!(
            reported_text
                .iter()
                .any(|problem| problem.contains("--sqpoll") && problem.contains("--driver uring")),
            "{reported_text:?}"
        );
    }
    assert!(read_with("spin = '10h'", &["."]).unwrap_err()[0].contains("at most 1s"));
}

#[test]
fn flags_that_do_not_go_together_name_the_file() {
    let reported_text = read_with("folder = \".\"\ntls-cert = \"cert.pem\"", &[]).unwrap_err();
    assert!(reported_text[0].contains("site.toml, with the command line: "), "{reported_text:?}");
    assert!(reported_text[0].ends_with("not provided: --tls-key <FILE>"), "{reported_text:?}");
    assert_eq!(
        read_with("folder = \".\"\ntls-cert = \"cert.pem\"", &["--tls-key", "key.pem"]).expect("well").len(),
        3
    );
    let reported_text = read_with("listing = true", &[]).unwrap_err();
    assert!(
        reported_text[0].contains("nothing says what to serve: name it there, as in folder = "),
        "{reported_text:?}"
    );
    // What comes of something else that is wrong is not told beside it.
    for file in ["folder = 1", "tls-cert = \"cert.pem\"\ntls-key = 1\nfolder = \".\"", "folder"] {
        let reported_text = read_with(file, &[]).unwrap_err();
        assert_eq!(reported_text.len(), 1, "{reported_text:?}");
    }
}

#[test]
fn a_wrong_command_line_is_told_as_ever() {
    for given in [&["--listings"][..], &["--addr", "x"], &["a", "b"], &["--addr=[::1]:1", "--addr=[::1]:2"]] {
        let reported_text = read_with("folder = \"a\"\naddr = \"127.0.0.1:80\"", given).unwrap_err();
        assert!(reported_text[0].contains("error: "), "{reported_text:?}");
    }
    let read =
        |given: &[&str]| read_matches(&command(), &given.iter().map(OsString::from).collect::<Vec<_>>());
    let failure = |given: &[&str]| match read(given) {
        Err(Failure::CommandLine(error)) => error,
        other => panic!("{given:?}: {other:?}"),
    };
    assert_eq!(failure(&["anello", "http"]).kind(), ErrorKind::MissingRequiredArgument);
    assert_eq!(failure(&["anello", "http", "--config"]).kind(), ErrorKind::InvalidValue);
    assert_eq!(failure(&["anello", "http", "--config", "x", "--help"]).kind(), ErrorKind::DisplayHelp);
    assert_eq!(failure(&["anello", "echo", "--config", "x"]).kind(), ErrorKind::UnknownArgument);
    let (_, configuration) =
        read(&["anello", "http", "a", "--config", "/no/such.toml"]).expect("the rest is well");
    assert!(configuration.problems[0].starts_with("/no/such.toml: "), "{:?}", configuration.problems);
}

#[test]
fn places_are_those_of_the_file_or_flags() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("site.toml");
    std::fs::write(&path, "folder = \"a\"\n\nindex = [\"x/y\"]\nlisting = true").expect("a file");
    let config = path.to_str().expect("text");
    let given =
        ["anello", "http", "--config", config, "--cors-origin", "x", "--index", "z"].map(OsString::from);
    let (_, configuration) = read_matches(&command(), &given).expect("well");
    assert_eq!(configuration.location("listing"), format!("{config}:4: listing"));
    assert_eq!(configuration.location("index"), "--index");
    assert_eq!(configuration.location("cors-origin"), "--cors-origin");
    assert_eq!(Configuration::default().location("folder"), "folder");
}

#[test]
fn no_flag_has_an_action_that_keys_do_not_know() {
    for key in keys(&http()) {
        let action = key.arg.get_action();
        assert!(
            matches!(action, ArgAction::Set | ArgAction::Append | ArgAction::SetTrue),
            "{}: {action:?}",
            key.name()
        );
    }
}
