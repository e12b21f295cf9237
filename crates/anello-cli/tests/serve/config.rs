//! Tests for the configuration files, the `--check` flag and the cache metrics of `anello http`.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::served;
use crate::served::{Served, connect};

/// Creates a working directory with a site in `public` and this configuration file.
fn working_directory(config: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    fs::create_dir_all(directory.path().join("public/docs")).expect("create directories");
    for name in ["hello.txt", "404.html", "docs/a.txt"] {
        fs::write(directory.path().join("public").join(name), format!("this is {name}")).expect("write file");
    }
    fs::write(directory.path().join("site.toml"), config).expect("write file");
    directory
}

fn command(working_directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.current_dir(working_directory).env_remove("ANELLO_DRIVER").args(arguments);
    command
}

/// Runs a check of the configuration file with additional arguments.
fn check(working_directory: &Path, arguments: &[&str]) -> Output {
    let all = [&["http", "--config", "site.toml", "--check"], arguments].concat();
    command(working_directory, &all).output().expect("run anello")
}

/// Returns the problems that prevent startup with this configuration file and these arguments.
fn problems(config: &str, arguments: &[&str]) -> Vec<String> {
    let working_directory = working_directory(config);
    let all = [&["http", "--config", "site.toml"], arguments].concat();
    let output = command(working_directory.path(), &all).output().expect("run anello");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{config}: {output:?}");
    let problems = text(&output.stderr).lines();
    problems.map(|line| line.strip_prefix("anello: ").expect("problem").to_owned()).collect()
}

/// Returns the settings printed by a check of this configuration file with these arguments.
fn settings(config: &str, arguments: &[&str]) -> Vec<String> {
    let working_directory = working_directory(config);
    for directory in ["a", "b", "-c", "-public"] {
        fs::create_dir(working_directory.path().join(directory)).expect("create directory");
    }
    let output = check(working_directory.path(), arguments);
    assert_eq!(output.status.code(), Some(0), "{config}: {output:?}");
    text(&output.stdout).lines().skip(1).map(str::to_owned).collect()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Starts a server in the working directory.
fn start(working_directory: &Path, arguments: &[&str]) -> Served {
    Served::spawn(command(working_directory, arguments))
}

/// Sends a request with `Connection: close` and returns the whole response.
fn send_request(address: &str, line: &str, fields: &str) -> String {
    String::from_utf8(served::send_request(connect(address), line, fields)).expect("UTF-8")
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).expect("status code")
}

/// Returns the name of each flag of `anello http`, and its help text as a single line.
fn flags() -> Vec<(String, String)> {
    let help = command(Path::new("."), &["http", "-h"]).output().expect("run anello");
    let mut flags: Vec<(String, String)> = Vec::new();
    for line in text(&help.stdout).lines().map(str::trim) {
        match line.strip_prefix("--") {
            Some(flag) => {
                let name = flag.split([' ', '[', '=']).next().expect("name");
                flags.push((name.to_owned(), line.to_owned()));
            }
            None if line.starts_with('-') => flags.push((String::new(), line.to_owned())),
            None => flags.iter_mut().last().into_iter().for_each(|(_, text)| *text += &format!(" {line}")),
        }
    }
    // -h and -V are not keys.
    flags.retain(|(name, _)| !name.is_empty());
    flags
}

/// Returns the values that the help of a flag lists after `heading`.
fn listed_values<'a>(help: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let list = help.split_once(&format!("[{heading}: ")).and_then(|(_, rest)| rest.split_once(']'));
    list.into_iter().flat_map(|(values, _)| values.split(", "))
}

/// Returns the type of each key: `a boolean`, `an integer`, `a string`, or a list of these.
fn key_types(names: &[&str]) -> Vec<String> {
    let file: String = names.iter().map(|name| format!("{name} = 1979-05-27\n")).collect();
    let problems = problems(&file, &[]);
    assert_eq!(problems.len(), names.len(), "{problems:?}");
    let types = problems.iter().zip(names).enumerate().map(|(index, (problem, name))| {
        let cause = problem.strip_prefix(&format!("site.toml:{}: {name}: expected ", index + 1));
        let (expected, _) = cause.and_then(|cause| cause.split_once(", not a date")).expect(problem);
        expected.to_owned()
    });
    types.collect()
}

#[test]
fn every_flag_is_key_and_accepts_its_defaults_and_choices() {
    let mut flags = flags();
    flags.retain(|(name, _)| !["config", "check"].contains(&name.as_str()));
    let names: Vec<&str> = flags.iter().map(|(name, _)| name.as_str()).chain(["directory"]).collect();
    let types = key_types(&names);
    assert_eq!(types.last().map(String::as_str), Some("a string"), "directory");
    // Each file contains one value of every key.
    let (mut files, mut value_count) = (Vec::<String>::new(), 0);
    for ((name, help), kind) in flags.iter().zip(&types) {
        assert_eq!(help.split("  ").next().expect("flag").contains('<'), kind != "a boolean", "{help}");
        let choices = listed_values(help, "possible values");
        let default =
            listed_values(help, "default").filter(|_| !["request-timeout", "group"].contains(&&**name));
        let values: Vec<String> = match kind.as_str() {
            "a boolean" => vec!["true".to_owned(), "false".to_owned()],
            "an integer" => default.map(str::to_owned).collect(),
            _ => choices.chain(default).map(|value| format!("{value:?}")).collect(),
        };
        for (index, value) in values.iter().enumerate() {
            files.resize(files.len().max(index + 1), String::new());
            files[index] += &format!("{name} = {value}\n");
            value_count += 1;
        }
    }
    assert!(value_count > 40, "{value_count}");
    for file in files {
        let problems = problems(&(file + "config = \"x\"\ncheck = true\ndirectory = 1"), &[]);
        let [config, check, directory] = &problems[..] else { panic!("{problems:?}") };
        for problem in [config, check] {
            assert!(problem.contains("only valid on the command line"), "{problem}");
        }
        assert!(directory.contains("directory: expected a string"), "{directory}");
    }
}

#[test]
fn flags_marked_as_io_uring_are_rejected_with_epoll() {
    let working_directory = working_directory("");
    let flags = flags();
    let start = flags.iter().position(|(name, _)| name == "driver").expect("driver");
    let flags =
        flags[start + 1..].iter().take_while(|(name, _)| !["config", "check"].contains(&name.as_str()));
    let flags: Vec<_> = flags.collect();
    assert!(flags.len() > 7, "{flags:?}");
    let types = key_types(&flags.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    for ((name, help), kind) in flags.into_iter().zip(types) {
        let is_uring = help.contains("(io_uring") || name == "sqpoll-core";
        let value = listed_values(help, "possible values").next();
        let flag = match kind.as_str() {
            "a boolean" => format!("--{name}"),
            "an integer" => format!("--{name}=1"),
            _ => format!("--{name}={}", value.unwrap_or("50us")),
        };
        let mut arguments = vec!["http", "public", "--check", "--driver", "epoll", &flag];
        arguments.extend((name == "sqpoll-core").then_some("--sqpoll=1"));
        let output = command(working_directory.path(), &arguments).output().expect("run anello");
        assert_eq!(output.status.code(), Some(if is_uring { 2 } else { 0 }), "{flag}: {output:?}");
        let error = text(&output.stderr);
        let names_flag =
            error.contains("--driver epoll cannot be used") && error.contains(&format!("--{name}"));
        assert_eq!(names_flag, is_uring, "{flag}: {output:?}");
    }
}

#[test]
fn file_sets_flags_and_command_line_overrides_them() {
    let working_directory = working_directory(
        "directory = \"public\"\naddr = \"127.0.0.1:0\"\nlisting = true\ndriver = \"epoll\"\n\
         not-found-file = \"404.html\"\ncache-control = [\"*.txt=no-cache\", \"*=max-age=60\"]\n\
         max-request-line-bytes = 100\nmax-body-bytes = 10\n",
    );
    let server = start(working_directory.path(), &["http", "--config", "site.toml"]);
    let address = server.ready_value("addr");
    assert_eq!(server.ready_value("driver"), "epoll");
    assert!(send_request(address, "GET /docs/", "").contains("a.txt"));
    let hello = send_request(address, "GET /hello.txt", "");
    assert!(hello.contains("Cache-Control: no-cache\r\n") && hello.ends_with("this is hello.txt"), "{hello}");
    let missing = send_request(address, "GET /lost", "");
    assert!(status(&missing) == "404" && missing.ends_with("this is 404.html"), "{missing}");
    assert_eq!(status(&send_request(address, &format!("GET /{}", "x".repeat(100)), "")), "414");
    assert_eq!(status(&send_request(address, "POST /", "Content-Length: 11\r\n")), "413");
    drop(server);
    let other =
        start(working_directory.path(), &["http", "public/docs", "--config=site.toml", "--cores", "0"]);
    assert_eq!(status(&send_request(other.ready_value("addr"), "GET /a.txt", "")), "200");
    assert_eq!(status(&send_request(other.ready_value("addr"), "GET /hello.txt", "")), "404");
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
        r#"addr = ["0.0.0.0:80"]"#,
        r#"index = ["start.html"]"#,
        "listing = true",
        r#"precompressed = ["br", "zstd", "gzip"]"#,
        r#"cors-origin = ["https://a.example", "https://b.example"]"#,
        "max-connections = 16",
        r#"keep-alive-timeout = "5s""#,
        "sqpoll = 100",
    ];
    assert_eq!(settings(file, &[]), expected);
    // The printed settings are themselves a configuration file that results in the same settings.
    assert_eq!(settings(&expected.join("\n"), &[]), expected);
}

#[test]
fn command_line_overrides_file() {
    let file =
        "directory = \"a\"\naddr = \"127.0.0.1:1\"\nindex = [\"a\", \"b\"]\nlisting = true\nsqpoll = 1";
    let given = ["b", "--index", "c", "--addr=127.0.0.1:2", "--sqpoll-core", "1"];
    let expected = [
        "directory = \"b\"",
        "addr = [\"127.0.0.1:2\"]",
        "index = [\"c\"]",
        "listing = true",
        "sqpoll = 1",
        "sqpoll-core = 1",
    ];
    assert_eq!(settings(file, &given), expected);
    assert_eq!(settings(file, &["--", "-c"])[0], "directory = \"-c\"");
    // A value on the command line overrides the file even if it equals the default.
    let file = "directory = \"a\"\ndriver = \"epoll\"";
    assert_eq!(settings(file, &["--driver", "auto"]), ["directory = \"a\""]);
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
        ("addr = 8080", "expected a list of strings, not an integer (for example addr = [\"ADDRESS\"])"),
        ("addr = \"localhost\"", "addr: invalid address \"localhost\" (expected IP:PORT"),
        ("tls-key = [\"key.pem\"]", "expected a string, not a list"),
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
        let messages = problems(text, &[]);
        let [message] = &messages[..] else { panic!("{text:?}: {messages:?}") };
        assert!(message.contains(expected_problem), "{message}\n{expected_problem}");
        assert!(message.starts_with("site.toml:"), "{message}");
    }
}

#[test]
fn all_problems_are_reported_in_file_order() {
    let messages = problems("listings = true\naddr = 80\nlisting = true\n\ndriver = \"x\"", &[]);
    let locations: Vec<&str> = messages.iter().map(|problem| &problem[..12]).collect();
    assert_eq!(locations, ["site.toml:1:", "site.toml:2:", "site.toml:5:"], "{messages:?}");
}

#[test]
fn every_invalid_list_item_is_reported() {
    let messages = problems(
        "cache-control = ['*.css', 'a=b', 1, '*.js']\ncors-origin = ['https://example.org', 2]\nmax-connections = 0",
        &[],
    );
    assert_eq!(messages.len(), 3, "{messages:?}");
    let messages = problems(
        "cache-control = ['*.css', 'a=b', '*.js']\nmax-connections = 0\nmax-listing-entries = -1",
        &[],
    );
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
        let working_directory = working_directory(file);
        let output = check(working_directory.path(), arguments);
        let message = text(&output.stderr);
        assert!(!output.status.success(), "{message}");
        assert!(message.contains("--sqpoll") && message.contains("--driver uring"), "{message}");
    }
    assert!(problems("spin = '10h'", &["."])[0].contains("at most 1s"));
}

#[test]
fn flag_conflict_names_file() {
    let messages = problems("directory = \".\"\ntls-cert = \"cert.pem\"", &[]);
    assert!(messages[0].contains("site.toml, combined with the command line: "), "{messages:?}");
    assert!(messages[0].ends_with("not provided: --tls-key <FILE>"), "{messages:?}");
    // The private key on the command line is combined with the certificate in the file.
    let messages = problems("directory = \".\"\ntls-cert = \"cert.pem\"", &["--tls-key", "key.pem"]);
    assert!(messages[0].starts_with("cert.pem: "), "{messages:?}");
    let messages = problems("listing = true", &[]);
    assert!(messages[0].contains("missing (set it in the file, e.g. directory = "), "{messages:?}");
    // Problems that result from another problem are not reported.
    for file in ["directory = 1", "tls-cert = \"cert.pem\"\ntls-key = 1\ndirectory = \".\"", "directory"] {
        let messages = problems(file, &[]);
        assert_eq!(messages.len(), 1, "{messages:?}");
    }
}

#[test]
fn invalid_command_line_is_reported_by_clap() {
    let run = |arguments: &[&str]| {
        let working_directory = working_directory("directory = \"public\"\naddr = \"127.0.0.1:80\"");
        command(working_directory.path(), arguments).output().expect("run anello")
    };
    for arguments in [&["--listings"][..], &["--addr", "x"], &["a", "b"], &["--tls-key=a", "--tls-key=b"]] {
        let output = run(&[&["http", "--config", "site.toml"], arguments].concat());
        assert!(text(&output.stderr).contains("error: "), "{output:?}");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
    for (arguments, expected) in [
        (&["http", "--config"][..], "a value is required for '--config <FILE>'"),
        (&["echo", "--config", "x"], "unexpected argument '--config'"),
    ] {
        let output = run(arguments);
        assert!(text(&output.stderr).contains(expected), "{output:?}");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
    let help = run(&["http", "--config", "x", "--help"]);
    assert!(help.status.success() && text(&help.stdout).contains("--max-connections"), "{help:?}");
    let output = run(&["http", "public", "--config", "/no/such.toml"]);
    assert!(text(&output.stderr).starts_with("anello: /no/such.toml: "), "{output:?}");
}

#[test]
fn flags_of_socket_files_require_socket_file() {
    let in_file = working_directory("directory = \"public\"\nsocket-mode = \"660\"");
    let problem = ": no --addr is a socket file (add --addr unix:/path, or remove this flag)\n";
    for address in ["127.0.0.1:0", "unix:@anello-flags-of-socket-files"] {
        for [flag, value] in [["--socket-mode", "660"], ["--socket-owner", "0"]] {
            let arguments = ["public", "--addr", address, flag, value];
            for (mode, code) in [(&["--check"][..], 1), (&[], 2)] {
                let arguments = [&["http"], &arguments[..], mode].concat();
                let output = command(in_file.path(), &arguments).output().expect("run anello");
                assert_eq!(text(&output.stderr), format!("anello: {flag}{problem}"));
                assert_eq!(output.status.code(), Some(code), "{arguments:?}");
            }
        }
        for mode in [&["--check"][..], &[]] {
            let arguments = [&["http", "--config", "site.toml", "--addr", address], mode].concat();
            let output = command(in_file.path(), &arguments).output().expect("run anello");
            assert_eq!(text(&output.stderr), format!("anello: site.toml:2: socket-mode{problem}"));
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        }
    }
}

#[test]
fn cache_hits_and_misses_are_counted() {
    let working_directory = working_directory(
        "directory = \"public\"\naddr = \"127.0.0.1:0\"\nmetrics-addr = \"127.0.0.1:0\"\nrevalidate-interval = \"1h\"",
    );
    // One worker, because each worker has its own cache.
    let server = start(working_directory.path(), &["http", "--config", "site.toml", "--cores", "0"]);
    for path in ["/hello.txt", "/hello.txt", "/docs/a.txt", "/hello.txt", "/lost"] {
        send_request(server.ready_value("addr"), &format!("GET {path}"), "");
    }
    let metrics = send_request(server.ready_value("metrics"), "GET /metrics", "");
    assert!(metrics.contains("\nanello_http_cache_hits_total 2\n"), "{metrics}");
    assert!(metrics.contains("\nanello_http_cache_misses_total 2\n"), "{metrics}");
    assert!(!metrics.contains("\nanello_http_cache_bytes 0\n"), "{metrics}");
}

#[test]
fn successful_check_prints_settings_and_creates_nothing() {
    let working_directory = working_directory(
        "directory = \"public\"\nlisting = true\naccess-log = \"access.log\"\nbody-timeout = \"10s\"\n",
    );
    // The check does not bind the address, so it succeeds even if the address is in use.
    let used_port = TcpListener::bind("127.0.0.1:0").expect("bind port");
    let address = used_port.local_addr().expect("local address").to_string();
    let arguments = ["--addr", &address, "--spa-fallback", "404.html", "--driver", "epoll"];
    let output = check(working_directory.path(), &arguments);
    let expected = format!(
        "# anello http: configuration OK with site.toml. Non-default settings:\ndirectory = \"public\"\naddr = [{address:?}]\n\
         listing = true\nspa-fallback = \"404.html\"\naccess-log = \"access.log\"\ndriver = \"epoll\"\n"
    );
    assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)));
    assert_eq!(text(&output.stdout), expected);
    assert!(!working_directory.path().join("access.log").exists());
    // The output is a configuration file that results in the same settings.
    fs::write(working_directory.path().join("site.toml"), &output.stdout).expect("write file");
    assert_eq!(text(&check(working_directory.path(), &[]).stdout), expected);
    let socket = check(working_directory.path(), &["--addr", "unix:socket"]);
    assert_eq!(socket.status.code(), Some(0), "{}", text(&socket.stderr));
    assert!(!working_directory.path().join("socket").exists());
    let without_config =
        command(working_directory.path(), &["http", "public", "--check"]).output().expect("run anello");
    let output_text = text(&without_config.stdout);
    assert!(
        output_text.starts_with("# anello http: configuration OK. ")
            && output_text.ends_with("\ndirectory = \"public\"\n"),
        "{output_text}"
    );
}

#[test]
fn check_reports_all_problems() {
    let working_directory = working_directory(
        "directory = \"public\"\nlistings = true\nmax-connections = \"many\"\ncache-control = [\"[=no-cache\", \"*=\"]\n\
         media-type = [\"foo=bar\"]\ncors-origin = [\"example.org\"]\nnot-found-file = \"docs\"\naccess-log = \"logs/a.log\"\n\
         tls-cert = \"cert.pem\"\ntls-key = \"key.pem\"\ncores = \"99999\"\nmetrics-addr = \"127.0.0.1:8080\"\n\
         index = [\"c/d\"]\n",
    );
    let output = check(working_directory.path(), &["--index", "a/b"]);
    let output_text = text(&output.stderr);
    assert_eq!((text(&output.stdout), output.status.code()), ("", Some(1)), "{output_text}");
    for expected in [
        "site.toml:2: listings: unknown key",
        "site.toml:3: max-connections: expected an integer",
        "site.toml:4: cache-control: \"[\": invalid pattern",
        "site.toml:4: cache-control: \"\": the value must be printable",
        "site.toml:5: media-type: \"bar\": ",
        "site.toml:6: cors-origin: \"example.org\": ",
        "site.toml:7: not-found-file: \"docs\": it is a directory",
        "site.toml:8: access-log: logs/a.log: logs: ",
        "site.toml:9: tls-cert: cert.pem: ",
        "site.toml:11: cores: core 99999 is outside the CPU affinity mask of this process",
        "site.toml:12: metrics-addr: 127.0.0.1:8080 is already the address of the file server",
        "--index: \"a/b\": ",
    ] {
        assert!(output_text.contains(&format!("anello: {expected}")), "{expected}\n{output_text}");
    }
    assert_eq!(output_text.lines().count(), 12, "{output_text}");
}

#[test]
fn check_validates_files_named_by_flags() {
    let working_directory =
        working_directory("directory = \"public\"\nnot-found-file = \"docs\"\nspa-fallback = \"app.html\"\n");
    let output_text = check(working_directory.path(), &[]);
    let output_text = text(&output_text.stderr);
    assert!(
        output_text.contains("site.toml:2: not-found-file: \"docs\": it is a directory"),
        "{output_text}"
    );
    assert!(
        output_text.contains("site.toml:3: spa-fallback: \"app.html\": cannot open the file"),
        "{output_text}"
    );
    let fifo = working_directory.path().join("public/app.html");
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, mode, 0).expect("create FIFO");
    let output_text = check(working_directory.path(), &[]);
    assert!(
        text(&output_text.stderr).contains("\"app.html\": it is not a regular file"),
        "{}",
        text(&output_text.stderr)
    );
    let output_text =
        check(working_directory.path(), &["missing", "--addr", "unix:none/socket", "--access-log", "public"]);
    let output_text = text(&output_text.stderr);
    assert!(output_text.contains("anello: directory: missing: "), "{output_text}");
    assert!(
        output_text.contains("anello: --addr: none/socket: none: ")
            && output_text.contains("create this directory first"),
        "{output_text}"
    );
    assert!(output_text.contains("anello: --access-log: public: is a directory"), "{output_text}");
}

#[test]
fn invalid_file_prevents_startup() {
    let working_directory = working_directory("directory = \"public\"\nlistings = true\naddr = 80");
    let output =
        command(working_directory.path(), &["http", "--config", "site.toml"]).output().expect("run anello");
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output_text}");
    assert!(
        output_text.starts_with("anello: site.toml:2: listings: ")
            && output_text.contains("\nanello: site.toml:3: addr: "),
        "{output_text}"
    );
    // At startup as well, invalid flag values are reported together with the other problems.
    let text_of_file =
        "directory = \"public\"\ncors-origin = [\"example.org\"]\nmedia-type = [\"foo=bar\"]\nsqpol = 1";
    fs::write(working_directory.path().join("site.toml"), text_of_file).expect("write file");
    let output =
        command(working_directory.path(), &["http", "--config", "site.toml", "--index", "a/b"]).output();
    let output = output.expect("run anello");
    let output_text = text(&output.stderr);
    for expected in
        ["site.toml:2: cors-origin: ", "site.toml:3: media-type: ", "site.toml:4: sqpol: ", "--index: "]
    {
        assert!(output_text.contains(&format!("anello: {expected}")), "{expected}\n{output_text}");
    }
    assert_eq!((output_text.lines().count(), output.status.code()), (4, Some(1)), "{output_text}");
    let output =
        command(working_directory.path(), &["http", "--config", "none.toml"]).output().expect("run anello");
    assert!(text(&output.stderr).starts_with("anello: none.toml: "), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    // Problems that concern only the command line are reported by clap.
    let output = command(working_directory.path(), &["http", "--config", "site.toml", "--nothing"])
        .output()
        .expect("run anello");
    assert!(text(&output.stderr).contains("unexpected argument '--nothing'"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn documentation_example_is_valid() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/http-config.md");
    let page = fs::read_to_string(page).expect("read page");
    let (_, example) = page.split_once("```toml\n").expect("TOML example");
    let (example, _) = example.split_once("```").expect("end of example");
    let working_directory = working_directory(example);
    let output = check(working_directory.path(), &[]);
    assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)));
    let setting_count = example.lines().filter(|line| line.contains('=') && !line.starts_with('#')).count();
    assert_eq!(text(&output.stdout).lines().count(), 1 + setting_count, "{}", text(&output.stdout));
}
