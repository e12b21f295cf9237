//! Tests for invalid values on the command line, in configuration files and in scenarios: each value is reported with
//! its field and a remedy before the command starts its work.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn run(directory: &TempDir, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.current_dir(directory).env_remove("ANELLO_DRIVER").stdin(Stdio::null());
    command.args(arguments).envs(variables.iter().copied()).output().expect("runs")
}

/// Runs a command that must fail and returns the lines of its standard error.
fn error_lines(directory: &TempDir, arguments: &[&str]) -> Vec<String> {
    let output = run(directory, arguments, &[]);
    assert!(!output.status.success(), "{arguments:?}: {output:?}");
    lines(&output)
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect()
}

/// Creates a directory that contains only the configuration file `site.toml`.
fn directory_with_config(config: &str) -> TempDir {
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join("site.toml"), config).expect("a file");
    directory
}

#[test]
fn nonexistent_cores_are_reported_on_one_line() {
    let directory = directory_with_config(
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
        let errors = error_lines(&directory, &[command, &["--cores", "5000-5097"]].concat());
        let [line] = &errors[..] else { panic!("{command:?}: {errors:?}") };
        let expected =
            "anello: --cores: cores 5000-5097 are outside the CPU affinity mask of this process (allowed: ";
        assert!(line.starts_with(expected), "{command:?}: {line}");
    }
    for check in [&["--check"][..], &[]] {
        let errors = error_lines(&directory, &[&["http", "--config", "site.toml"], check].concat());
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(
            errors.iter().any(|line| line.contains("site.toml:3: cores: cores 5000-5097 are outside")),
            "{errors:?}"
        );
        assert_eq!(
            errors.iter().filter(|line| line.contains("site.toml:4: cors-origin: ")).count(),
            2,
            "{errors:?}"
        );
    }
}

#[test]
fn io_uring_flags_with_epoll_driver_are_rejected() {
    let directory = directory_with_config(
        "directory = \".\"\ndriver = \"epoll\"\nsqpoll = 10\nmax-receive-buffers = 64\n",
    );
    let commands: [&[&str]; 5] = [
        &["echo"],
        &["http", "."],
        &["http", ".", "--check"],
        &["load", "tcp", "127.0.0.1:9"],
        &["load", "http", "http://127.0.0.1:9/"],
    ];
    for command in commands {
        let errors = error_lines(&directory, &[command, &["--driver", "epoll", "--sqpoll", "10"]].concat());
        assert!(
            errors[0].contains("--driver epoll cannot be used with the io_uring flags --sqpoll"),
            "{command:?}: {errors:?}"
        );
        assert!(errors[0].contains("--driver uring"), "{command:?}: {errors:?}");
        let both = [command, &["--sqpoll", "10", "--zero-copy-bytes", "0", "--driver", "epoll"]].concat();
        let errors = error_lines(&directory, &both);
        assert!(errors[0].contains("--sqpoll, --zero-copy-bytes"), "{command:?}: {errors:?}");
        // Flags that both drivers support are accepted; the command fails later because of `--cores`.
        let supported = ["--spin", "50us", "--direct-send-threshold-bytes", "1", "--driver", "epoll"];
        let errors = error_lines(&directory, &[command, &supported, &["--cores", "5000"]].concat());
        assert!(errors[0].starts_with("anello: --cores: "), "{command:?}: {errors:?}");
    }
    for check in [&["--check"][..], &[]] {
        let errors = error_lines(&directory, &[&["http", "--config", "site.toml"], check].concat());
        let [line] = &errors[..] else { panic!("{errors:?}") };
        assert!(line.contains("site.toml") && line.contains("--sqpoll, --max-receive-buffers"), "{line}");
    }
}

/// `auto` falls back to epoll if io_uring is unavailable, and `ANELLO_DRIVER` overrides the flag. In both cases, the
/// server starts and reports the flags that have no effect.
#[test]
fn ineffective_io_uring_flags_are_reported() {
    let directory = directory_with_config("directory = \".\"\nsqpoll = 10\nzero-copy-bytes = 4096\n");
    let epoll = [("ANELLO_DRIVER", "epoll")];
    let expected = "anello: --sqpoll, --zero-copy-bytes ignored by the epoll driver";
    let output = run(&directory, &["http", "--config", "site.toml", "--check"], &epoll);
    assert!(output.status.success(), "{output:?}");
    assert!(lines(&output).iter().any(|line| line.starts_with(expected)), "{output:?}");
    let load =
        ["load", "tcp", "127.0.0.1:9", "-c", "1", "-d", "10ms", "--sqpoll", "10", "--zero-copy-bytes", "1"];
    let output = run(&directory, &load, &epoll);
    assert!(lines(&output).iter().any(|line| line.starts_with(expected)), "{output:?}");
    let output = run(&directory, &["http", ".", "--check"], &epoll);
    assert_eq!((output.status.success(), lines(&output)), (true, Vec::new()), "{output:?}");
}

#[test]
fn servers_with_ineffective_io_uring_flags_start() {
    let directory = directory_with_config("");
    for command in [&["echo"][..], &["http", "."]] {
        let mut server = Command::new(env!("CARGO_BIN_EXE_anello"));
        server.current_dir(&directory).args(command).args(["--addr", "127.0.0.1:0", "--sqpoll", "10"]);
        server.env("ANELLO_DRIVER", "epoll").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = server.spawn().expect("starts");
        let first_line = |output: &mut dyn Read| {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).expect("a line");
            line
        };
        let ready = first_line(&mut server.stdout.take().expect("piped"));
        let reported = first_line(&mut server.stderr.take().expect("piped"));
        server.kill().expect("is running");
        server.wait().expect("exits");
        assert!(ready.contains(" ready ") && ready.contains("driver=epoll"), "{ready}");
        let expected = "anello: --sqpoll ignored by the epoll driver";
        assert!(reported.starts_with(expected), "{command:?}: {reported}");
    }
}

#[test]
fn spin_above_one_second_is_rejected() {
    let directory = directory_with_config("directory = \".\"\nspin = \"10h\"\n");
    let commands: [&[&str]; 5] =
        [&["echo"], &["http", "."], &["load", "tcp", "127.0.0.1:9"], &["bare", "epoll"], &["bare", "uring"]];
    for command in commands {
        let errors = error_lines(&directory, &[command, &["--spin", "1001ms"]].concat());
        assert!(errors[0].contains("--spin") && errors[0].contains("at most 1s"), "{command:?}: {errors:?}");
    }
    let errors = error_lines(&directory, &["http", "--config", "site.toml", "--check"]);
    assert!(errors[0].contains("site.toml:2: spin: ") && errors[0].contains("at most 1s"), "{errors:?}");
}

#[test]
fn scenario_type_errors_use_toml_terms() {
    for (line, expected) in [
        ("connections = [\"x\"]", "expected a whole number of at least 0, not string \"x\""),
        ("server_share = \"half\"", "expected a number, not string \"half\""),
        ("rounds = -1", "expected a whole number of at least 0, not integer `-1`"),
        ("seed = 1.5", "expected a whole number of at least 0, not floating point `1.5`"),
        ("check = 1", "expected a boolean, true or false, not integer `1`"),
        ("title = 1", "expected text in quotes, not integer `1`"),
    ] {
        let directory = directory_with_config(line);
        let errors = error_lines(&directory, &["lab", "run", "--scenario", "site.toml"]);
        assert!(errors[0].starts_with("anello: site.toml:1:") && errors[0].ends_with(expected), "{errors:?}");
        assert!(errors[2].ends_with(line), "the line contains the key: {errors:?}");
    }
}

#[test]
fn log_filter_is_a_level_or_a_list_of_targets() {
    let directory = TempDir::new().expect("a directory");
    let lines = |value: &str| lines(&run(&directory, &["completions", "bash"], &[("ANELLO_LOG", value)]));
    for valid in ["", "off", "INFO", "anello=debug", "warn,anello_http=trace"] {
        assert!(lines(valid).is_empty(), "{valid}");
    }
    for invalid in ["inof", "anello", "anello=inof", "a=b=info", "warn,"] {
        let start =
            format!("anello: invalid ANELLO_LOG={invalid}: logging warnings (use a level, such as info, or ");
        assert!(matches!(&*lines(invalid), [line] if line.starts_with(&start)), "{invalid}");
    }
}

#[test]
fn unknown_flags_have_no_tip_that_cannot_be_followed() {
    let directory = directory_with_config("");
    for command in [&["load", "http", "http://127.0.0.1:9/"][..], &["load", "tcp", "127.0.0.1:9"], &["http"]]
    {
        for flag in ["--flag-of-another-program", "-Z"] {
            let output = run(&directory, &[command, &[flag]].concat(), &[]);
            let text = lines(&output).join("\n");
            assert_eq!(output.status.code(), Some(2), "{text}");
            assert!(text.contains("unexpected argument") && !text.contains("tip:"), "{text}");
            assert!(!text.contains("\n\n\n"), "{text}");
        }
    }
    let text = error_lines(&directory, &["load", "tcp", "127.0.0.1:9", "--connection", "5"]).join("\n");
    assert!(text.contains("tip: a similar argument exists: '--connections'"), "{text}");
}

#[test]
fn address_errors_name_no_port_of_another_server() {
    let directory = directory_with_config("");
    let commands: [&[&str]; 4] = [
        &["http", "--addr", "x"],
        &["echo", "--addr", "x"],
        &["bare", "epoll", "--addr", "x"],
        &["http", "--metrics-addr", "x"],
    ];
    for command in commands {
        let text = error_lines(&directory, command).join("\n");
        assert!(text.contains("(expected IP:PORT") && !text.contains(":7000"), "{command:?}: {text}");
    }
}
