//! Tests for the documents: every command line runs, every TOML and JSON example is accepted, and every flag and every
//! linked file exists. The Rust examples are doctests, or parts of the tutorial's package, which has tests of its own.

mod document;
mod manifests;
mod pages;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use document::{Document, documents, repository};
use manifests::is_manifest;
use tempfile::TempDir;

use crate::common;
use crate::common::served::Served;
use crate::common::tls::create_identity;

/// Splits a command line as a shell does, up to a comment, a redirection, a pipe or `&`.
fn split_words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut quote, mut in_word) = (None, false);
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '\'' | '"') => (quote, in_word) = (Some(character), extend(&mut words, in_word)),
            (None, '#' | '>' | '|' | '&') if !in_word => break,
            (None, ' ') => in_word = false,
            _ => {
                in_word = extend(&mut words, in_word);
                words.last_mut().expect("word").push(character);
            }
        }
    }
    words
}

/// Starts a word unless one has already been started.
fn extend(words: &mut Vec<String>, in_word: bool) -> bool {
    if !in_word {
        words.push(String::new());
    }
    true
}

/// An `anello` command line: environment variables and arguments.
struct Invocation {
    variables: Vec<(String, String)>,
    words: Vec<String>,
}

impl Invocation {
    /// Returns `None` if the command line runs another program.
    fn parse(line: &str) -> Option<Self> {
        let mut words = split_words(line);
        let count = words.iter().take_while(|word| word.contains('=')).count();
        let variables = words
            .drain(..count)
            .filter_map(|word| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())));
        let variables = variables.collect();
        let program_words = if words.iter().take(4).eq(["cargo", "run", "--release", "--"]) { 4 } else { 1 };
        let program = words.first()?.rsplit('/').next()?;
        (program_words == 4 || program == "anello")
            .then(|| Self { variables, words: words.split_off(program_words) })
    }
}

/// Returns the `anello` command lines in code blocks, in unit files, and in code spans without placeholders.
fn command_lines(document: &Document) -> Vec<String> {
    let (fenced, indented, _) = document.blocks();
    let mut lines = Vec::new();
    for block in fenced.iter().filter(|block| ["console", "ini"].contains(&block.language.as_str())) {
        let prefix = if block.language == "ini" { "ExecStart=" } else { "$ " };
        let text = block.lines.join("\n").replace("\\\n", " ");
        lines.extend(text.lines().filter_map(|line| line.strip_prefix(prefix)).map(str::to_owned));
    }
    lines.extend(indented.into_iter().flat_map(|block| block.lines));
    let is_complete = |span: &&String| {
        let words = span.split(' ').skip(1);
        words.clone().count() > 2
            && words.flat_map(str::chars).all(|c| !c.is_uppercase() && !"[…".contains(c))
    };
    lines.extend(document.spans().iter().filter(is_complete).cloned());
    lines.retain(|line| Invocation::parse(line).is_some_and(|parsed| !parsed.words.is_empty()));
    lines
}

fn anello(directory: &Path) -> Command {
    let mut command = common::anello(&[]);
    command.current_dir(directory);
    command
}

/// A directory with the files used in the examples, and the servers to which the examples send requests.
struct Fixture {
    directory: TempDir,
    servers: Vec<Served>,
    /// Parts of the examples and their replacements in the tests. For each word, the first matching entry applies.
    replacements: Vec<(String, String)>,
}

const SCENARIO: &str = r#"
name = "small"
title = "Small"
message_bytes = [128]
connections = [1]
contenders = ["anello epoll", "bare epoll"]
reference = "bare epoll"
passes = 1
rounds = 1
slice = "20ms"
warm_up = "5ms"
"#;

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("public")).expect("directory");
        for (name, text) in [
            ("public/index.html", "<!doctype html>"),
            ("public/404.html", "<!doctype html>"),
            ("paths.txt", "/index.html\n/404.html\n"),
            ("site.toml", "directory = \"public\"\n"),
            ("mine.toml", SCENARIO),
        ] {
            fs::write(at(name), text).expect("file");
        }
        create_identity(&at("chain.pem"), &at("key.pem"));
        fs::copy(at("chain.pem"), at("ca.pem")).expect("file");
        let mut fixture = Self { directory, servers: Vec::new(), replacements: Vec::new() };
        let tls = ["--tls-cert", "chain.pem", "--tls-key", "key.pem"];
        let echo = fixture.serve(&["echo", "--addr", "127.0.0.1:0"]);
        let echo_pid = fixture.servers[0].id().to_string();
        let long_echo = fixture.serve(&[
            "echo",
            "--addr",
            "127.0.0.1:0",
            "--request-bytes",
            "128",
            "--response-bytes",
            "4096",
        ]);
        let http = fixture.serve(&["http", "public", "--addr", "127.0.0.1:0"]);
        let https = fixture.serve(&[&["http", "public", "--addr", "127.0.0.1:0"], &tls[..]].concat());
        fixture.serve(&["echo", "--addr", "unix:echo.sock"]);
        fixture.serve(&["http", "public", "--addr", "unix:http.sock"]);
        fixture.replacements = [
            ("long:", long_echo),
            ("127.0.0.1:7000", echo),
            ("127.0.0.1:8080", http),
            ("localhost:8443", https.replace("127.0.0.1", "localhost")),
            ("4711", echo_pid),
            ("/run/anello/", String::new()),
            ("/run/", String::new()),
            ("/srv/www", "public".to_owned()),
        ]
        .map(|(part, replacement)| (part.to_owned(), replacement))
        .into();
        fixture
    }

    fn serve(&mut self, arguments: &[&str]) -> String {
        let mut command = anello(self.directory.path());
        command.args(arguments);
        self.servers.push(Served::spawn(command));
        self.servers[self.servers.len() - 1].address().to_owned()
    }

    /// Returns the command with these arguments, adapted to the servers and files of this fixture.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = anello(self.directory.path());
        for word in words {
            let found = self.replacements.iter().find(|(part, _)| word.contains(part.as_str()));
            command.arg(
                found.map_or_else(|| (*word).to_owned(), |(part, new)| word.replace(part.as_str(), new)),
            );
        }
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("anello")
    }

    /// Runs a small comparison and returns the path of its JSON file.
    fn measure(&self) -> PathBuf {
        let output = self.output(&["lab", "run", "--scenario", "mine.toml", "--skip-checks", "--out", "lab"]);
        assert!(output.status.success(), "{}", errors_of(&output));
        let paths = fs::read_dir(self.directory.path().join("lab")).expect("directory");
        let mut paths = paths.map(|entry| entry.expect("entry").path());
        paths.find(|path| path.extension().is_some_and(|extension| extension == "json")).expect("JSON file")
    }

    /// Runs an example, as far as this is possible in a test, and returns its error.
    fn run(&self, example: &Invocation) -> Result<(), String> {
        let words: Vec<&str> = example.words.iter().map(String::as_str).collect();
        let with = |more: &[&str]| {
            let mut command = self.command(&[&words, more].concat());
            command.envs(example.variables.iter().map(|(name, value)| (name, value)));
            command
        };
        match words.as_slice() {
            ["echo", ..] => {
                let words: Vec<_> = words.iter().map(|word| word.replace(":7000", ":0")).collect();
                Served::spawn(self.command(&words.iter().map(String::as_str).collect::<Vec<_>>())).stop();
                Ok(())
            }
            ["http", ..] if !words.contains(&"--check") => match expect_success(with(&["--check"])) {
                // Missing permissions and kernel features are detected after the flags have been parsed.
                Err(error) if error.contains("anello: --user ") || error.contains("sandbox: ") => Ok(()),
                result => result,
            },
            ["load", protocol, ..] if *protocol != "merge" => {
                let words: Vec<_> = shorten(&words).collect();
                expect_success(self.command(&words.iter().map(String::as_str).collect::<Vec<_>>()))
            }
            // Without ssh, no host can be reached. The flags have been parsed before.
            ["lab", "run", ..] if words.contains(&"--server-host") => {
                let errors = errors_of(&with(&[]).env("PATH", "").output().expect("anello"));
                if errors.contains("cannot start ssh: ") { Ok(()) } else { Err(errors) }
            }
            // The missing file is reported only if all flags and the scenario are valid.
            ["lab", "run", ..] if !words.contains(&"--resume") => {
                let output = with(&["--instructions", "missing.json"]).output().expect("anello");
                let errors = errors_of(&output);
                if errors.contains("missing.json") { Ok(()) } else { Err(errors) }
            }
            ["lab", "open"] => {
                let errors = errors_of(&with(&["--no-browser", "missing.html"]).output().expect("anello"));
                if errors.contains("cannot read missing.html") { Ok(()) } else { Err(errors) }
            }
            // Without a compiler, nothing can be built.
            ["lab", "peers", "build", ..] => {
                let output = with(&[]).env("PATH", "").output().expect("anello");
                if output.status.code() == Some(2) { Err(errors_of(&output)) } else { Ok(()) }
            }
            _ => expect_success(with(&[])),
        }
    }
}

fn errors_of(output: &Output) -> String {
    format!("{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}

fn expect_success(mut command: Command) -> Result<(), String> {
    let output = command.output().expect("anello");
    output.status.success().then_some(()).ok_or_else(|| errors_of(&output))
}

/// Shortens a load run, and selects the server whose responses have the expected length.
fn shorten<'a>(words: &'a [&'a str]) -> impl Iterator<Item = String> + 'a {
    let is_long = words.contains(&"--response-bytes");
    let mut skipped = false;
    let kept = words.iter().filter(move |word| {
        let skip = std::mem::replace(&mut skipped, ["--duration", "--warm-up"].contains(word));
        !skip && !skipped
    });
    let kept = kept
        .map(move |word| if is_long { word.replace("127.0.0.1:7000", "long:") } else { (*word).to_owned() });
    kept.chain(["--duration", "100ms", "--warm-up", "0s"].map(str::to_owned))
}

#[test]
fn command_lines_run() {
    let fixture = Fixture::new();
    let directory = fixture.directory.path();
    let result = fixture.measure();
    symlink(repository().join("peers"), directory.join("peers")).expect("link");
    for name in ["first.json", "second.json", "before.json", "after.json", "anello-lab/lab-TIME.json"] {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().expect("directory")).expect("directory");
        fs::copy(&result, path).expect("file");
    }
    for name in ["a.hlog", "b.hlog"] {
        let output = fixture.output(&["load", "tcp", "127.0.0.1:7000", "--duration", "50ms", "--hdr", name]);
        assert!(output.status.success(), "{}", errors_of(&output));
    }
    let (mut run, mut failures) = (0, Vec::new());
    for document in documents() {
        for line in command_lines(&document) {
            run += 1;
            if let Err(error) = fixture.run(&Invocation::parse(&line).expect("anello")) {
                failures.push(format!("{}: {line}\n    {error}", document.path));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(run >= 50, "only {run} command lines found");
}

/// Returns the `--help` output of a command and all its subcommands.
fn help(path: &[&str]) -> String {
    let output = anello(Path::new(".")).args(path).arg("--help").output().expect("anello");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let commands = text.split("Commands:").nth(1).unwrap_or("").split("\n\n").next().unwrap_or("");
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let nested: String = names.map(|name| help(&[path, &[name]].concat())).collect();
    text.clone() + &nested
}

/// Flags in the documents that belong to other programs.
const FOREIGN_FLAGS: [&str; 9] = [
    "--compressed",
    "--http1.0",
    "--cfg",
    "--h1",
    "--locked",
    "--root",
    "--buffer-bytes",
    "--record",
    "--with-file-aio",
];

#[test]
fn flags_exist() {
    let flags_of = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !(c.is_alphanumeric() || "-.".contains(c)));
        let flags = words
            .map(|word| word.trim_end_matches('.'))
            .filter(|word| word.len() > 3 && word.starts_with("--"));
        flags.map(str::to_owned).collect()
    };
    let known = flags_of(&help(&[]));
    let (mut checked, mut unknown) = (0, Vec::new());
    for document in documents() {
        for span in
            document.spans().iter().filter(|span| !span.starts_with("cargo ") && !span.contains(".ci/"))
        {
            for flag in flags_of(span).into_iter().filter(|flag| !FOREIGN_FLAGS.contains(&flag.as_str())) {
                checked += 1;
                if !known.contains(&flag) {
                    unknown.push(format!("{}: {span}", document.path));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "unknown flags:\n{}", unknown.join("\n"));
    assert!(checked >= 100, "only {checked} flags found");
}

#[test]
fn toml_examples_are_accepted() {
    let fixture = Fixture::new();
    let write = |name: &str, text: &str| {
        let path = fixture.directory.path().join(name);
        fs::create_dir_all(path.parent().expect("directory")).expect("directory");
        fs::write(path, text).expect("file");
    };
    let mut accepted = 0;
    for document in documents() {
        let mut first: Option<toml::Table> = None;
        for example in document.blocks_in("toml") {
            accepted += 1;
            let keys: toml::Table = toml::from_str(&example).expect("TOML");
            if is_manifest(&keys) {
                continue;
            }
            let (output, expected) = match document.path.as_str() {
                "docs/reference/http-config.md" => {
                    write("example.toml", &example);
                    (fixture.output(&["http", "--config", "example.toml", "--check"]), "")
                }
                "docs/reference/lab-scenarios.md" => {
                    // An example without a name is a fragment that is added to the first example.
                    let mut scenario = first.get_or_insert_with(|| keys.clone()).clone();
                    if keys.contains_key("name") {
                        scenario = keys;
                    } else {
                        scenario.extend(keys);
                    }
                    write("example.toml", &scenario.to_string());
                    let arguments =
                        ["lab", "run", "--scenario", "example.toml", "--instructions", "missing.json"];
                    (fixture.output(&arguments), "missing.json")
                }
                "peers/README.md" => {
                    write("peers/tokio-http/peer.toml", &example);
                    write("peers/flags/README.md", "");
                    (fixture.output(&["lab", "peers", "list", "--peers", "peers"]), "")
                }
                path => panic!("{path}: no parser is known for its TOML examples"),
            };
            let errors = errors_of(&output);
            let is_accepted =
                if expected.is_empty() { output.status.success() } else { errors.contains(expected) };
            assert!(is_accepted, "{}: {errors}\n{example}", document.path);
        }
    }
    assert!(accepted >= 6, "only {accepted} examples found");
}

/// Checks that `actual` has all fields of the example, with values of the same type.
fn assert_same_shape(example: &serde_json::Value, actual: &serde_json::Value, place: &str) {
    use serde_json::Value::{Array, Null, Object};
    match (example, actual) {
        (Null, _) | (_, Null) => {}
        (Object(example), Object(actual)) => {
            for (name, value) in example {
                let place = format!("{place}.{name}");
                let actual = actual.get(name).unwrap_or_else(|| panic!("{place} does not exist"));
                assert_same_shape(value, actual, &place);
            }
        }
        (Array(example), Array(actual)) => {
            for value in example {
                let actual = actual.first().unwrap_or_else(|| panic!("{place} has no elements"));
                assert_same_shape(value, actual, &format!("{place}[]"));
            }
        }
        _ => {
            let same = std::mem::discriminant(example) == std::mem::discriminant(actual);
            assert!(same, "{place}: {example} in the example, {actual} in the output");
        }
    }
}

#[test]
fn json_examples_have_the_fields_of_real_output() {
    let fixture = Fixture::new();
    let mut accepted = 0;
    for document in documents() {
        for example in document.blocks_in("json") {
            accepted += 1;
            let Ok(value) = serde_json::from_str::<serde_json::Value>(&example) else {
                for line in example.lines() {
                    let workload = serde_json::from_str::<anello_lab::Workload>(line);
                    assert!(workload.is_ok(), "{}: {line}: {workload:?}", document.path);
                }
                continue;
            };
            let actual = match value["schema"].as_str() {
                Some("anello-load") => {
                    let load =
                        ["load", "tcp", "127.0.0.1:7000", "--rate", "500", "--duration", "100ms", "--json"];
                    fixture.output(&load).stdout
                }
                Some("anello-lab") => fs::read(fixture.measure()).expect("JSON file"),
                schema => panic!("{}: unknown schema {schema:?}", document.path),
            };
            let actual: serde_json::Value = serde_json::from_slice(&actual).expect("JSON");
            assert_same_shape(&value, &actual, &document.path);
            assert_eq!(value["schema_version"], actual["schema_version"], "{}", document.path);
        }
    }
    assert!(accepted >= 3, "only {accepted} examples found");
}
