//! Invalid values on the command line, in configuration files and in scenarios: each is reported with its field and remedy,
//! before anything is served, loaded or measured.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn run(place: &TempDir, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.current_dir(place).env_remove("ANELLO_DRIVER").stdin(Stdio::null());
    command.args(arguments).envs(variables.iter().copied()).output().expect("runs")
}

/// The lines on standard error of a command that must fail.
fn refused(place: &TempDir, arguments: &[&str]) -> Vec<String> {
    let output = run(place, arguments, &[]);
    assert!(!output.status.success(), "{arguments:?}: {output:?}");
    lines(&output)
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect()
}

/// An empty directory with a configuration file in it.
fn place(config: &str) -> TempDir {
    let place = TempDir::new().expect("a directory");
    fs::write(place.path().join("site.toml"), config).expect("a file");
    place
}

#[test]
fn cores_that_do_not_exist_are_one_line_of_every_command() {
    let place = place(
        "directory = \".\"\nmax-connections = 10\ncores = \"5000-5097\"\ncors-origin = [\"a\", \"b\"]\n",
    );
    let commands: [&[&str]; 5] = [
        &["echo", "--addr", "127.0.0.1:0"],
        &["http", ".", "--addr", "127.0.0.1:0"],
        &["http", ".", "--check"],
        &["load", "tcp", "127.0.0.1:9"],
        &["load", "http", "http://127.0.0.1:9/"],
    ];
    for command in commands {
        let said = refused(&place, &[command, &["--cores", "5000-5097"]].concat());
        let [line] = &said[..] else { panic!("{command:?}: {said:?}") };
        let expected = "anello: --cores: cores 5000-5097 may not be used by this process: choose from ";
        assert!(line.starts_with(expected), "{command:?}: {line}");
    }
    for check in [&["--check"][..], &[]] {
        let said = refused(&place, &[&["http", "--config", "site.toml"], check].concat());
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(
            said.iter().any(|line| line.contains("site.toml:3: cores: cores 5000-5097 may not")),
            "{said:?}"
        );
        assert_eq!(
            said.iter().filter(|line| line.contains("site.toml:4: cors-origin: ")).count(),
            2,
            "{said:?}"
        );
    }
}

#[test]
fn flags_for_io_uring_beside_epoll_are_refused_by_every_command() {
    let place = place("directory = \".\"\ndriver = \"epoll\"\nsqpoll = 10\nregistered-files = true\n");
    let commands: [&[&str]; 5] = [
        &["echo"],
        &["http", "."],
        &["http", ".", "--check"],
        &["load", "tcp", "127.0.0.1:9"],
        &["load", "http", "http://127.0.0.1:9/"],
    ];
    for command in commands {
        let said = refused(&place, &[command, &["--driver", "epoll", "--sqpoll", "10"]].concat());
        assert!(
            said[0].contains("--driver epoll cannot be used with the io_uring flags --sqpoll"),
            "{command:?}: {said:?}"
        );
        assert!(said[0].contains("--driver uring"), "{command:?}: {said:?}");
    }
    for check in [&["--check"][..], &[]] {
        let said = refused(&place, &[&["http", "--config", "site.toml"], check].concat());
        let [line] = &said[..] else { panic!("{said:?}") };
        assert!(line.contains("site.toml") && line.contains("--sqpoll, --registered-files"), "{line}");
    }
}

/// `auto` falls back to epoll where io_uring is unavailable, and `ANELLO_DRIVER` overrides the flag: the service starts, and
/// the flags without effect are reported.
#[test]
fn flags_for_io_uring_without_effect_are_reported() {
    let place = place("directory = \".\"\nsqpoll = 10\nzero-copy-bytes = 4096\n");
    let epoll = [("ANELLO_DRIVER", "epoll")];
    let expected = "anello: --sqpoll, --zero-copy-bytes ignored by the epoll driver";
    let output = run(&place, &["http", "--config", "site.toml", "--check"], &epoll);
    assert!(output.status.success(), "{output:?}");
    assert!(lines(&output).iter().any(|line| line.starts_with(expected)), "{output:?}");
    let load =
        ["load", "tcp", "127.0.0.1:9", "-c", "1", "-d", "10ms", "--sqpoll", "10", "--zero-copy-bytes", "1"];
    let output = run(&place, &load, &epoll);
    assert!(lines(&output).iter().any(|line| line.starts_with(expected)), "{output:?}");
    let output = run(&place, &["http", ".", "--check"], &epoll);
    assert_eq!((output.status.success(), lines(&output)), (true, Vec::new()), "{output:?}");
}

#[test]
fn servers_start_and_report_flags_for_io_uring_without_effect() {
    let place = place("");
    for command in [&["echo"][..], &["http", "."]] {
        let mut server = Command::new(env!("CARGO_BIN_EXE_anello"));
        server.current_dir(&place).args(command).args(["--addr", "127.0.0.1:0", "--sqpoll", "10"]);
        server.env("ANELLO_DRIVER", "epoll").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = server.spawn().expect("starts");
        let first_line = |output: &mut dyn Read| {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).expect("a line");
            line
        };
        let ready = first_line(&mut server.stdout.take().expect("piped"));
        let reported = first_line(&mut server.stderr.take().expect("piped"));
        server.kill().expect("runs");
        server.wait().expect("ends");
        assert!(ready.contains(" ready ") && ready.contains("driver=epoll"), "{ready}");
        let expected = "anello: --sqpoll ignored by the epoll driver";
        assert!(reported.starts_with(expected), "{command:?}: {reported}");
    }
}

#[test]
fn spins_above_one_second_are_refused() {
    let place = place("directory = \".\"\nspin = \"10h\"\n");
    let commands: [&[&str]; 5] =
        [&["echo"], &["http", "."], &["load", "tcp", "127.0.0.1:9"], &["bare", "epoll"], &["bare", "uring"]];
    for command in commands {
        let said = refused(&place, &[command, &["--spin", "1001ms"]].concat());
        assert!(said[0].contains("--spin") && said[0].contains("at most 1s"), "{command:?}: {said:?}");
    }
    let said = refused(&place, &["http", "--config", "site.toml", "--check"]);
    assert!(
        said[0].contains("site.toml:2: spin: invalid spin duration \"10h\"")
            && said[0].contains("at most 1s"),
        "{said:?}"
    );
}

#[test]
fn scenarios_are_refused_in_words_of_toml_alone() {
    for (line, expected) in [
        ("connections = [\"x\"]", "expected a whole number of at least 0, not string \"x\""),
        ("server_share = \"half\"", "expected a number, not string \"half\""),
        ("rounds = -1", "expected a whole number of at least 0, not integer `-1`"),
        ("seed = 1.5", "expected a whole number of at least 0, not floating point `1.5`"),
        ("check = 1", "expected a boolean, true or false, not integer `1`"),
        ("title = 1", "expected text in quotes, not integer `1`"),
    ] {
        let place = place(line);
        let said = refused(&place, &["lab", "run", "--scenario", "site.toml"]);
        assert!(said[0].starts_with("anello: site.toml:1:") && said[0].ends_with(expected), "{said:?}");
        assert!(said[2].ends_with(line), "the line names the key: {said:?}");
    }
}
