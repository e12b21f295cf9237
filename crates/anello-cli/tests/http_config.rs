//! `anello http` with a file of flags, what `--check` says, and the counts of the cache.

mod served;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use served::{Served, connect};

/// A folder to start in, with a site in `public` and this file of flags.
fn place(config: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(folder.path().join("public/docs")).expect("folders");
    for name in ["hello.txt", "404.html", "docs/a.txt"] {
        fs::write(folder.path().join("public").join(name), format!("this is {name}")).expect("a file");
    }
    fs::write(folder.path().join("site.toml"), config).expect("a file");
    folder
}

fn command(place: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.current_dir(place).env_remove("ANELLO_DRIVER").args(arguments);
    command
}

/// What a check of that file says, with these arguments besides.
fn check(place: &Path, arguments: &[&str]) -> Output {
    let all = [&["http", "--config", "site.toml", "--check"], arguments].concat();
    command(place, &all).output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// A server that is started there.
fn start(place: &Path, arguments: &[&str]) -> Served {
    Served::of(command(place, arguments))
}

/// The whole answer to a request that ends its connection.
fn ask(address: &str, line: &str, fields: &str) -> String {
    String::from_utf8(served::ask(connect(address), line, fields)).expect("text")
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).expect("a status")
}

#[test]
fn a_server_has_its_flags_from_a_file_and_the_command_line_wins() {
    let place = place(
        "folder = \"public\"\naddr = \"127.0.0.1:0\"\nlisting = true\ndriver = \"epoll\"\n\
         not-found-file = \"404.html\"\ncache-control = [\"*.txt=no-cache\", \"*=max-age=60\"]\n\
         max-request-line-bytes = 100\nmax-body-bytes = 10\n",
    );
    let server = start(place.path(), &["http", "--config", "site.toml"]);
    let address = server.ready_value("addr");
    assert_eq!(server.ready_value("driver"), "epoll");
    assert!(ask(address, "GET /docs/", "").contains("a.txt"));
    let hello = ask(address, "GET /hello.txt", "");
    assert!(hello.contains("Cache-Control: no-cache\r\n") && hello.ends_with("this is hello.txt"), "{hello}");
    let lost = ask(address, "GET /lost", "");
    assert!(status(&lost) == "404" && lost.ends_with("this is 404.html"), "{lost}");
    assert_eq!(status(&ask(address, &format!("GET /{}", "x".repeat(100)), "")), "414");
    assert_eq!(status(&ask(address, "POST /", "Content-Length: 11\r\n")), "413");
    drop(server);
    let other = start(place.path(), &["http", "public/docs", "--config=site.toml", "--cores", "0"]);
    assert_eq!(status(&ask(other.ready_value("addr"), "GET /a.txt", "")), "200");
    assert_eq!(status(&ask(other.ready_value("addr"), "GET /hello.txt", "")), "404");
}

#[test]
fn hits_and_misses_of_the_cache_are_counted() {
    let place = place(
        "folder = \"public\"\naddr = \"127.0.0.1:0\"\nmetrics-addr = \"127.0.0.1:0\"\nrevalidate-interval = \"1h\"",
    );
    // Each worker has a cache of its own.
    let server = start(place.path(), &["http", "--config", "site.toml", "--cores", "0"]);
    for path in ["/hello.txt", "/hello.txt", "/docs/a.txt", "/hello.txt", "/lost"] {
        ask(server.ready_value("addr"), &format!("GET {path}"), "");
    }
    let metrics = ask(server.ready_value("metrics"), "GET /metrics", "");
    assert!(metrics.contains("\nanello_http_cache_hits_total 2\n"), "{metrics}");
    assert!(metrics.contains("\nanello_http_cache_misses_total 2\n"), "{metrics}");
    assert!(!metrics.contains("\nanello_http_cache_bytes 0\n"), "{metrics}");
}

#[test]
fn a_check_that_finds_nothing_wrong_tells_what_is_set_and_touches_nothing() {
    let place =
        place("folder = \"public\"\nlisting = true\naccess-log = \"access.log\"\nbody-timeout = \"10s\"\n");
    // An address that is taken is no matter: nothing is bound.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let arguments = ["--addr", &address, "--spa-fallback", "404.html", "--driver", "epoll"];
    let output = check(place.path(), &arguments);
    let expected = format!(
        "# anello http: all is well with site.toml. What is not as by default:\nfolder = \"public\"\naddr = {address:?}\n\
         listing = true\nspa-fallback = \"404.html\"\naccess-log = \"access.log\"\ndriver = \"epoll\"\n"
    );
    assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)));
    assert_eq!(text(&output.stdout), expected);
    assert!(!place.path().join("access.log").exists());
    // What it says is a file that sets the same.
    fs::write(place.path().join("site.toml"), &output.stdout).expect("a file");
    assert_eq!(text(&check(place.path(), &[]).stdout), expected);
    let socket = check(place.path(), &["--addr", "unix:socket"]);
    assert_eq!(socket.status.code(), Some(0), "{}", text(&socket.stderr));
    assert!(!place.path().join("socket").exists());
    let without_file = command(place.path(), &["http", "public", "--check"]).output().expect("runs");
    let said = text(&without_file.stdout);
    assert!(
        said.starts_with("# anello http: all is well. ") && said.ends_with("\nfolder = \"public\"\n"),
        "{said}"
    );
}

#[test]
fn a_check_tells_all_that_is_wrong() {
    let place = place(
        "folder = \"public\"\nlistings = true\nmax-connections = \"many\"\ncache-control = [\"[=no-cache\", \"*=\"]\n\
         media-type = [\"foo=bar\"]\ncors-origin = [\"example.org\"]\nnot-found-file = \"docs\"\naccess-log = \"logs/a.log\"\n\
         tls-cert = \"cert.pem\"\ntls-key = \"key.pem\"\ncores = \"99999\"\nmetrics-addr = \"127.0.0.1:8080\"\n",
    );
    let output = check(place.path(), &["--index", "a/b"]);
    let said = text(&output.stderr);
    assert_eq!((text(&output.stdout), output.status.code()), ("", Some(1)), "{said}");
    for expected in [
        "site.toml:2: listings: there is no such flag",
        "site.toml:3: max-connections: it takes a whole number",
        "site.toml:4: cache-control: \"[\": invalid pattern",
        "site.toml:4: cache-control: \"\": the value must be printable",
        "site.toml:5: media-type: \"bar\": ",
        "site.toml:6: cors-origin: \"example.org\": ",
        "site.toml:7: not-found-file: \"docs\": it is a directory",
        "site.toml:8: access-log: logs/a.log: logs: ",
        "site.toml:9: tls-cert: cert.pem: ",
        "site.toml:11: cores: core 99999 may not be used by this process",
        "site.toml:12: metrics-addr: 127.0.0.1:8080 is the address of the files",
        "--index: \"a/b\": ",
    ] {
        assert!(said.contains(&format!("anello: {expected}")), "{expected}\n{said}");
    }
    assert_eq!(said.lines().count(), 12, "{said}");
}

#[test]
fn a_check_looks_at_the_files_that_flags_name() {
    let place = place("folder = \"public\"\nnot-found-file = \"docs\"\nspa-fallback = \"app.html\"\n");
    let said = check(place.path(), &[]);
    let said = text(&said.stderr);
    assert!(said.contains("site.toml:2: not-found-file: \"docs\": it is a directory"), "{said}");
    assert!(said.contains("site.toml:3: spa-fallback: \"app.html\": cannot open the file"), "{said}");
    let fifo = place.path().join("public/app.html");
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    let said = check(place.path(), &[]);
    assert!(text(&said.stderr).contains("\"app.html\": it is not a regular file"), "{}", text(&said.stderr));
    let said = check(place.path(), &["nowhere", "--addr", "unix:none/socket", "--access-log", "public"]);
    let said = text(&said.stderr);
    assert!(said.contains("anello: folder: nowhere: "), "{said}");
    assert!(
        said.contains("anello: --addr: none/socket: none: ") && said.contains("make this folder first"),
        "{said}"
    );
    assert!(said.contains("anello: --access-log: public: it is a folder"), "{said}");
}

#[test]
fn a_wrong_file_keeps_the_server_from_starting() {
    let place = place("folder = \"public\"\nlistings = true\naddr = 80");
    let output = command(place.path(), &["http", "--config", "site.toml"]).output().expect("runs");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("anello: site.toml:2: listings: ") && said.contains("\nanello: site.toml:3: addr: "),
        "{said}"
    );
    // What the values of flags are not is told with the rest, also at a start.
    let text_of_file =
        "folder = \"public\"\ncors-origin = [\"example.org\"]\nmedia-type = [\"foo=bar\"]\nsqpol = 1";
    fs::write(place.path().join("site.toml"), text_of_file).expect("a file");
    let output = command(place.path(), &["http", "--config", "site.toml", "--index", "a/b"]).output();
    let output = output.expect("runs");
    let said = text(&output.stderr);
    for expected in
        ["site.toml:2: cors-origin: ", "site.toml:3: media-type: ", "site.toml:4: sqpol: ", "--index: "]
    {
        assert!(said.contains(&format!("anello: {expected}")), "{expected}\n{said}");
    }
    assert_eq!((said.lines().count(), output.status.code()), (4, Some(1)), "{said}");
    let output = command(place.path(), &["http", "--config", "none.toml"]).output().expect("runs");
    assert!(text(&output.stderr).starts_with("anello: none.toml: "), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    // What is wrong on the command line alone is told as everywhere.
    let output =
        command(place.path(), &["http", "--config", "site.toml", "--nothing"]).output().expect("runs");
    assert!(text(&output.stderr).contains("unexpected argument '--nothing'"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_example_of_the_documentation_is_well() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/http-config.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, example) = page.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let place = place(example);
    let output = check(place.path(), &[]);
    assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)));
    let set = example.lines().filter(|line| line.contains('=') && !line.starts_with('#')).count();
    assert_eq!(text(&output.stdout).lines().count(), 1 + set, "{}", text(&output.stdout));
}
