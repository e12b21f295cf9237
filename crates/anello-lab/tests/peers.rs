//! The peers' manifests agree with their lock files, and a peer is built, found out of date, and started.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anello_lab::contender::ServerProcess;
use anello_lab::peers::{
    Driver, Kind, Origin, Outcome, Peer, Peers, Protocol, ROOT, Serves, State, Toolchains,
};

#[path = "common/git.rs"]
mod git;

fn real_peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers")
}

#[test]
fn every_peer_has_a_manifest_that_agrees_with_its_lock_file() {
    let out = tempfile::tempdir().unwrap();
    let peers = Peers::open(&real_peers(), out.path()).unwrap();
    for entry in fs::read_dir(real_peers()).unwrap() {
        let folder = entry.unwrap().path();
        let ends_with = |end: &str| folder.is_dir() && folder.to_string_lossy().ends_with(end);
        let is_peer = ends_with("-echo") || ends_with("-http");
        let folder = fs::canonicalize(folder).unwrap();
        assert_eq!(is_peer, peers.all().iter().any(|peer| peer.folder == folder), "{}", folder.display());
    }
    for peer in peers.all() {
        let end = format!("-{}", peer.manifest.protocol);
        assert!(peer.folder.to_string_lossy().ends_with(&end), "{}: not {end}", peer.folder.display());
        if let Some(version) = &peer.manifest.version {
            assert_eq!(locked_version(peer).as_ref(), Some(version), "{}", peer.manifest.name);
        }
        for source in &peer.manifest.sources {
            assert!(peer.folder.join(source).is_dir(), "{}: {source}", peer.manifest.name);
        }
    }
}

#[test]
fn what_runs_tasks_is_an_async_runtime_and_what_only_calls_back_is_none() {
    let out = tempfile::tempdir().unwrap();
    let peers = Peers::open(&real_peers(), out.path()).unwrap();
    let of = |kind: Kind| -> Vec<&str> {
        let those = peers.all().iter().filter(|peer| peer.manifest.kind == kind);
        those.map(|peer| peer.manifest.name.as_str()).collect()
    };
    let runtimes = [
        "compio", "glommio", "go-net", "go-uring", "may", "monoio", "netty", "ntex-net", "ringline", "smol",
        "tokio",
    ];
    assert_eq!(of(Kind::Runtime), runtimes);
    assert_eq!(of(Kind::Library), ["asio", "gnet", "libuv"]);
    assert_eq!(of(Kind::Loop), ["mio-hot"]);
}

#[test]
fn what_speaks_http_is_a_framework_or_a_server_and_every_framework_has_the_fixed_answer() {
    let out = tempfile::tempdir().unwrap();
    let peers = Peers::open(&real_peers(), out.path()).unwrap();
    let of = |kind: Kind| -> Vec<&str> {
        let those = peers.speaking(Protocol::Http).filter(|peer| peer.manifest.kind == kind);
        those.map(|peer| peer.manifest.name.as_str()).collect()
    };
    assert_eq!(of(Kind::Framework), ["actix-web", "axum", "go-http", "hyper", "monoio-http", "ntex"]);
    assert_eq!(of(Kind::Server), ["caddy", "h2o", "lighttpd", "nginx", "static-web-server"]);
    assert_eq!(peers.speaking(Protocol::Http).count(), 11);
    let secure = peers.all().iter().filter(|peer| peer.manifest.tls);
    let secure: Vec<&str> = secure.map(|peer| peer.manifest.name.as_str()).collect();
    assert_eq!(secure, ["caddy", "go-http", "h2o", "lighttpd", "nginx"]);
    for peer in peers.speaking(Protocol::Http) {
        let is_framework = peer.manifest.kind == Kind::Framework;
        assert_eq!(peer.manifest.serves.contains(&Serves::Fixed), is_framework, "{}", peer.manifest.name);
    }
}

#[test]
fn the_readme_tells_of_every_peer_and_every_contender() {
    let out = tempfile::tempdir().unwrap();
    let readme = fs::read_to_string(real_peers().join("README.md")).unwrap();
    for peer in Peers::open(&real_peers(), out.path()).unwrap().all() {
        let folder = peer.folder.file_name().unwrap().to_string_lossy();
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{folder}` |")));
        let row = row.unwrap_or_else(|| panic!("no row for {folder}"));
        for contender in &peer.manifest.contenders {
            assert!(row.contains(&contender.name), "{folder}: {}", contender.name);
        }
        let shown = peer.manifest.version.as_deref().map(|version| version.trim_end_matches(".Final"));
        if let Some(version) = shown.filter(|version| !version.starts_with("v0.0.0-")) {
            assert!(row.contains(version.trim_start_matches('v')), "{folder}: not {version}");
        }
    }
}

/// The version of a peer's library in the lock file that it has.
fn locked_version(peer: &Peer) -> Option<String> {
    let read = |name: &str| fs::read_to_string(peer.folder.join(name)).ok();
    let library = &peer.manifest.library;
    let after = |text: &str, start: &str, end: &str| {
        let (_, rest) = text.split_once(start)?;
        Some(rest.split_once(end)?.0.to_owned())
    };
    if let Some(lock) = read("Cargo.lock") {
        return after(&lock, &format!("name = \"{library}\"\nversion = \""), "\"");
    }
    if let Some(module) = read("go.mod") {
        return after(&module, &format!("\t{library} "), "\n");
    }
    after(&read("pom.xml")?, "<netty.version>", "</netty.version>")
}

const FAKE: &str = r#"name = "fake"
title = "a shell script"
language = "Shell"
kind = "loop"
library = "shell"
version_command = ["sh", "-c", "echo 5.2"]
toolchain = ["sh", "cp"]
compiler = ["sh", "-c", "echo; echo sh 1 >&2"]
build = [["sh", "-c", "echo copying; mkdir -p {out}/bin"], ["cp", "fake.sh", "{out}/bin/fake"]]
program = ["/bin/sh", "{out}/bin/fake"]
warm_up_s = 3
hint = "it needs a shell"

[[contender]]
name = "fake one"
driver = "epoll"

[[contender]]
name = "fake two"
driver = "io_uring"
arguments = ["--twice"]
features = ["twice"]
connections_limit = 7
"#;

/// A folder of peers with one in it, and a folder to build in.
struct PeerFixture {
    folder: tempfile::TempDir,
}

impl PeerFixture {
    fn new(manifest: &str) -> Self {
        let workshop = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(workshop.peer()).unwrap();
        workshop.write("peer.toml", manifest);
        workshop.write("fake.sh", "echo \"ready addr=127.0.0.1:4711 driver=none $*\"; exec sleep 60\n");
        workshop
    }

    fn peer(&self) -> PathBuf {
        self.folder.path().join("peers/fake-echo")
    }

    /// Writes a source, dated long ago.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.peer().join(name), text).unwrap();
        self.date(name, SystemTime::now() - Duration::from_secs(3600));
    }

    fn date(&self, name: &str, when: SystemTime) {
        let file = fs::File::options().append(true).open(self.peer().join(name)).unwrap();
        file.set_modified(when).unwrap();
    }

    fn peers(&self) -> Peers {
        Peers::open(&self.folder.path().join("peers"), &self.folder.path().join("out")).unwrap()
    }
}

#[test]
fn a_peer_is_built_once_and_again_when_a_source_or_the_caller_says_so() {
    let workshop = PeerFixture::new(FAKE);
    let (peers, tools) = (workshop.peers(), Toolchains::from_environment());
    let peer = &peers.all()[0];
    assert_eq!(peer.state(), State::NotBuilt);
    assert!(peers.contenders(Protocol::Echo, "0").is_empty());

    let Outcome::Built(built) = peer.build(&tools, false) else { panic!("not built") };
    assert_eq!((built.version.as_str(), built.compiler.as_str()), ("5.2", "sh 1"));
    assert_eq!(built.commands.len(), 2);
    assert_eq!(peer.state(), State::Built(built.clone()));
    assert_eq!(peer.build(&tools, false), Outcome::UpToDate(built.clone()));
    assert!(matches!(peer.build(&tools, true), Outcome::Built(_)));
    let log = fs::read_to_string(peer.out.join("build.log")).unwrap();
    assert!(log.contains("copying\n$ cp fake.sh"), "{log}");

    workshop.date("fake.sh", SystemTime::now() + Duration::from_secs(3600));
    assert!(matches!(peer.state(), State::Outdated(_)));
    assert!(matches!(peer.build(&tools, false), Outcome::Built(_)));
    workshop.date("fake.sh", SystemTime::now() - Duration::from_secs(3600));
    assert!(matches!(peer.state(), State::Built(_)));

    fs::remove_file(peer.out.join("bin/fake")).unwrap();
    assert_eq!(peer.state(), State::NotBuilt, "its program is gone");
}

#[test]
fn a_built_peer_gives_contenders_that_start() {
    let workshop = PeerFixture::new(FAKE);
    let peers = workshop.peers();
    assert!(matches!(peers.all()[0].build(&Toolchains::from_environment(), false), Outcome::Built(_)));
    let contenders = peers.contenders(Protocol::Echo, "0,1");
    let [one, two] = contenders.as_slice() else { panic!("{contenders:?}") };
    assert_eq!((one.contender.name.as_str(), one.driver, one.kind), ("fake one", Driver::Epoll, Kind::Loop));
    assert_eq!((two.version.as_str(), two.built_with.as_str()), ("5.2", "Shell (sh 1)"));
    assert_eq!((two.connections_limit, two.warm_up), (Some(7), Duration::from_secs(3)));
    assert_eq!(two.features, ["twice"]);

    let core = anello_lab::machine::allowed_cores()[0];
    let (_process, running) =
        ServerProcess::start(&two.contender, &[], &[core], Duration::from_secs(20)).unwrap();
    assert!(running.ready_line.ends_with("--addr 127.0.0.1:0 --cores 0,1 --twice"), "{}", running.ready_line);
}

#[test]
fn http_peers_are_told_the_folder_and_are_no_echo_servers() {
    let http =
        FAKE.replace("kind = \"loop\"", "kind = \"server\"\nprotocol = \"http\"\nserves = [\"files\"]");
    let workshop = PeerFixture::new(&http);
    let peers = workshop.peers();
    assert!(matches!(peers.all()[0].build(&Toolchains::from_environment(), false), Outcome::Built(_)));
    assert!(peers.contenders(Protocol::Echo, "0").is_empty());
    let contenders = peers.contenders(Protocol::Http, "0");
    let [one, two] = contenders.as_slice() else { panic!("{contenders:?}") };
    assert_eq!(one.serves, [Serves::Files]);
    let end = ["--cores", "0", "--root", ROOT, "--twice"];
    assert!(two.contender.arguments.ends_with(&end.map(String::from)), "{:?}", two.contender.arguments);
}

#[test]
fn a_build_keeps_where_library_and_server_come_from() {
    let pinned = FAKE
        .replace("library = \"shell\"", "library = \"example.org/shell\"")
        .replace("\"echo 5.2\"", "\"echo v0.0.0-20220926161041-69611e8b13d5\"");
    let workshop = PeerFixture::new(&pinned);
    workshop.write(
        "go.sum",
        "example.org/shell v0.0.0-20220926161041-69611e8b13d5/go.mod h1:no\n\
         example.org/shell v0.0.0-20220926161041-69611e8b13d5 h1:yes=\n",
    );
    let has_commit = git::is_here();
    if has_commit {
        for words in [&["init"][..], &["add", "."], &["commit", "-m", "one"]] {
            git::git(&workshop.folder.path().join("peers"), words);
        }
    }
    let built = || workshop.peers().all()[0].build(&Toolchains::from_environment(), true);
    let Outcome::Built(first) = built() else { panic!("not built") };
    assert_eq!(first.origin.library_checksum.as_deref(), Some("h1:yes="));
    assert_eq!(first.origin.library_commit.as_deref(), Some("69611e8b13d5"));
    assert_eq!(first.origin.server_commit.is_some(), has_commit);
    assert_eq!(workshop.peers().contenders(Protocol::Echo, "0")[0].origin, first.origin);
    workshop.write("fake.sh", "echo changed\n");
    let Outcome::Built(second) = built() else { panic!("not built") };
    let changed = first.origin.server_commit.as_ref().map(|commit| format!("{commit}+changes"));
    assert_eq!(second.origin.server_commit, changed);

    // As an older version wrote it.
    let record = workshop.peers().all()[0].out.join("built.json");
    let mut built: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    built.as_object_mut().unwrap().remove("origin").unwrap();
    fs::write(&record, built.to_string()).unwrap();
    let pinned = Origin { server_commit: None, ..first.origin };
    assert_eq!(
        workshop.peers().contenders(Protocol::Echo, "0")[0].origin,
        pinned,
        "what the lock file says needs no build"
    );
}

#[test]
fn a_missing_toolchain_is_named_and_nothing_is_done() {
    let workshop = PeerFixture::new(FAKE);
    let tools = tempfile::tempdir().unwrap();
    let shell = tools.path().join("sh");
    fs::write(&shell, "").unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    // There, but nothing that could be run.
    fs::write(tools.path().join("cp"), "").unwrap();
    let outcome = workshop.peers().all()[0].build(&Toolchains::new(tools.path().as_os_str()), true);
    let Outcome::Missing { programs, hint } = outcome else { panic!("{outcome:?}") };
    assert_eq!((programs, hint.as_deref()), (vec!["cp".to_owned()], Some("it needs a shell")));
    assert!(!workshop.folder.path().join("out").exists());
    let none = workshop.peers().all()[0].missing_programs(&Toolchains::new(OsStr::new("")));
    assert_eq!(none, ["sh", "cp"]);
}

#[test]
fn a_failed_build_is_no_build_and_tells_its_last_words() {
    let workshop = PeerFixture::new(FAKE);
    let tools = Toolchains::from_environment();
    assert!(matches!(workshop.peers().all()[0].build(&tools, false), Outcome::Built(_)));
    let broken = FAKE.replace("echo copying", "echo no such header: uv.h; exit 3");
    workshop.write("peer.toml", &broken);
    let peers = workshop.peers();
    let Outcome::Failed { why, last_lines, log, .. } = peers.all()[0].build(&tools, true) else { panic!() };
    assert!(why.contains("exit status: 3"), "{why}");
    assert_eq!(last_lines.last().map(String::as_str), Some("no such header: uv.h"));
    assert!(log.is_file());
    assert_eq!(peers.all()[0].state(), State::NotBuilt, "not even the earlier one counts");
}

#[test]
fn a_build_that_makes_no_program_has_failed() {
    let workshop = PeerFixture::new(
        &FAKE.replace("\"fake.sh\", \"{out}/bin/fake\"", "\"fake.sh\", \"{out}/bin/other\""),
    );
    let peers = workshop.peers();
    let outcome = peers.all()[0].build(&Toolchains::from_environment(), false);
    let Outcome::Failed { why, .. } = outcome else { panic!("{outcome:?}") };
    assert!(why.contains("did not create") && why.ends_with("out/fake/bin/fake"), "{why}");
}

#[test]
fn peers_answer_to_their_names_and_mistakes_are_told_with_their_place() {
    let workshop = PeerFixture::new(FAKE);
    let peers = workshop.peers();
    for name in ["fake", "fake-echo", "fake two"] {
        assert_eq!(peers.named(&[name.to_owned()]).unwrap().len(), 1, "{name}");
    }
    let unknown = peers.named(&["tokyo".to_owned()]).unwrap_err();
    assert!(unknown.contains("\"tokyo\"") && unknown.contains("known peers: fake"), "{unknown}");

    let folder = workshop.folder.path().join("peers");
    let open = || Peers::open(&folder, &folder).unwrap_err().to_string();
    workshop.write("peer.toml", &FAKE.replace("driver = \"epoll\"", "driver = \"select\""));
    assert!(open().contains("fake-echo/peer.toml:16: "), "{}", open());
    workshop.write("peer.toml", &FAKE.replace("fake two", "fake one"));
    assert!(open().contains("duplicate contender name \"fake one\""), "{}", open());
    fs::remove_file(workshop.peer().join("peer.toml")).unwrap();
    assert!(open().contains("no subdirectory contains a peer.toml"), "{}", open());
}
