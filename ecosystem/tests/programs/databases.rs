//! Clients of databases and brokers, against the servers in Debian.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::common::*;

/// Returns the path of a server that does not run as root: the command runs as the given user instead.
fn as_user(user: &str, program: &PathBuf) -> Command {
    let is_root = output(Command::new("id").arg("-u"), b"").trim() == "0";
    if !is_root {
        return Command::new(program);
    }
    // setpriv replaces itself by the program, so that the process is the server.
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups"]).arg(program);
    command
}

#[test]
fn postgres_executes_queries() {
    if !ensure("initdb", "postgresql") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("the directory is created");
    let own = "if [ $(id -u) = 0 ]; then chmod 711 \"$1\" && chown postgres: \"$1/data\"; fi";
    output(Command::new("sh").args(["-c", own, "sh"]).arg(directory.path()), b"");
    // Through a link, the server would not find its files.
    let initdb = find("initdb").and_then(|initdb| initdb.canonicalize().ok()).expect("initdb is installed");
    let mut command = as_user("postgres", &initdb);
    output(command.args(["-U", "postgres", "-A", "trust", "--no-sync", "-D"]).arg(&data), b"");

    let port = free_port();
    let mut command = as_user("postgres", &initdb.with_file_name("postgres"));
    command
        .arg("-D")
        .arg(&data)
        .args(["-h", "127.0.0.1", "-k", "", "-F", "-p", &port.to_string()])
        .stderr(Stdio::null());
    let mut server = Process::start(&mut command);
    server.wait_for_port(port);
    let address = format!("127.0.0.1:{port}");
    // The port is open before the server accepts clients.
    let is_ready = "until \"$1\" -q -h 127.0.0.1 -p \"$2\"; do sleep 0.02; done";
    let pg_isready = initdb.with_file_name("pg_isready");
    output(Command::new("sh").args(["-c", is_ready, "sh"]).arg(pg_isready).arg(port.to_string()), b"");
    let expected = "copied 3\nlarge [\"Milano\", \"Roma\"]\nsum 9900\nnotified ciao\ncancelled Some(\"57014\")\nnext 3\n";
    on_each_platform(|platform| assert_eq!(run("postgres", platform, &[&address]), expected, "{platform:?}"));
}

#[test]
fn redis_executes_commands() {
    if !ensure("redis-server", "redis-server") {
        return;
    }
    let expected = "get Milano\ntransaction 2 2\nsum 5050\npublished to 1: Some(\"ciao\")\ntimed out true\n";
    on_each_platform(|platform| {
        let directory = tempfile::tempdir().expect("a directory");
        let port = free_port();
        let mut command = Command::new(find("redis-server").expect("redis-server is installed"));
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"])
            .arg(directory.path());
        let mut server = Process::start(&mut command);
        server.wait_for_port(port);
        assert_eq!(run("redis", platform, &[&format!("127.0.0.1:{port}")]), expected, "{platform:?}");
    });
}

#[test]
fn mqtt_exchanges_messages() {
    let Some(broker) = Broker::start() else { return };
    let mut expected = "subscribed\n".to_owned();
    for quality in ["AtMostOnce", "AtLeastOnce", "ExactlyOnce"] {
        expected.extend((0..3).map(|number| format!("received {quality} {number}\n")));
    }
    expected += "disconnected\n";
    on_each_platform(|platform| {
        assert_eq!(run("mqtt", platform, &["127.0.0.1", &broker.port]), expected, "{platform:?}");
    });
}

/// The MQTT broker mosquitto.
struct Broker {
    port: String,
    _process: Process,
    _directory: tempfile::TempDir,
}

impl Broker {
    fn start() -> Option<Self> {
        if !ensure("mosquitto", "mosquitto") {
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let port = free_port();
        let configuration = directory.path().join("mosquitto.conf");
        std::fs::write(&configuration, format!("listener {port} 127.0.0.1\nallow_anonymous true\n"))
            .expect("the file is written");
        let mut command = Command::new(find("mosquitto").expect("mosquitto is installed"));
        let mut process = Process::start(command.arg("-c").arg(configuration).stderr(Stdio::null()));
        process.wait_for_port(port);
        Some(Self { port: port.to_string(), _process: process, _directory: directory })
    }
}
