//! Tests for the peers: their manifests match their lock files, and a peer can be built, rebuilt and started.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anello_lab::ServerProcess;
use anello_lab::contender::ROOT;
use anello_lab::peers::{Kind, Origin, Outcome, Peer, Peers, Protocol, Serves, State, Toolchains};

use crate::git;

fn real_peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers")
}

#[test]
fn every_peer_manifest_matches_lock_file() {
    let out = tempfile::tempdir().unwrap();
    let peers = Peers::open(&real_peers(), out.path()).unwrap();
    for entry in fs::read_dir(real_peers()).unwrap() {
        let directory = entry.unwrap().path();
        let ends_with = |end: &str| directory.is_dir() && directory.to_string_lossy().ends_with(end);
        let is_peer = ends_with("-echo") || ends_with("-http");
        let directory = fs::canonicalize(directory).unwrap();
        assert_eq!(
            is_peer,
            peers.all().iter().any(|peer| peer.folder == directory),
            "{}",
            directory.display()
        );
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
fn echo_peers_have_expected_kinds() {
    let out = tempfile::tempdir().unwrap();
    let peers = Peers::open(&real_peers(), out.path()).unwrap();
    let of = |kind: Kind| -> Vec<&str> {
        let matching = peers.all().iter().filter(|peer| peer.manifest.kind == kind);
        matching.map(|peer| peer.manifest.name.as_str()).collect()
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
fn http_peers_have_expected_kinds_and_targets() {
    let out = tempfile::tempdir().unwrap();
    let peers = Peers::open(&real_peers(), out.path()).unwrap();
    let of = |kind: Kind| -> Vec<&str> {
        let matching = peers.speaking(Protocol::Http).filter(|peer| peer.manifest.kind == kind);
        matching.map(|peer| peer.manifest.name.as_str()).collect()
    };
    let frameworks = [
        "actix-web",
        "axum",
        "axum-on-anello",
        "go-http",
        "hyper",
        "monoio-http",
        "ntex",
        "service-on-anello",
        "xitca-web",
    ];
    assert_eq!(of(Kind::Framework), frameworks);
    assert_eq!(of(Kind::Server), ["caddy", "h2o", "lighttpd", "nginx", "static-web-server"]);
    assert_eq!(peers.speaking(Protocol::Http).count(), 14);
    let secure = peers.all().iter().filter(|peer| peer.manifest.tls);
    let secure: Vec<&str> = secure.map(|peer| peer.manifest.name.as_str()).collect();
    assert_eq!(secure, ["caddy", "go-http", "h2o", "lighttpd", "nginx"]);
    for peer in peers.speaking(Protocol::Http) {
        let is_framework = peer.manifest.kind == Kind::Framework;
        assert_eq!(peer.manifest.serves.contains(&Serves::Fixed), is_framework, "{}", peer.manifest.name);
    }
}

#[test]
fn readme_lists_every_peer_and_contender() {
    let out = tempfile::tempdir().unwrap();
    let readme = fs::read_to_string(real_peers().join("README.md")).unwrap();
    for peer in Peers::open(&real_peers(), out.path()).unwrap().all() {
        let directory = peer.folder.file_name().unwrap().to_string_lossy();
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{directory}` |")));
        let row = row.unwrap_or_else(|| panic!("no row for {directory}"));
        for contender in &peer.manifest.contenders {
            assert!(row.contains(&contender.name), "{directory}: {}", contender.name);
        }
        let shown = peer.manifest.version.as_deref().map(|version| version.trim_end_matches(".Final"));
        if let Some(version) = shown.filter(|version| !version.starts_with("v0.0.0-")) {
            assert!(row.contains(version.trim_start_matches('v')), "{directory}: not {version}");
        }
    }
}

/// Returns the version of a peer's library from its lock file.
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

/// Temporary directory with a build directory and a peers' directory, which contains one peer.
struct PeerFixture {
    directory: tempfile::TempDir,
}

impl PeerFixture {
    fn new(manifest: &str) -> Self {
        let fixture = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir_all(fixture.peer()).unwrap();
        fixture.write("peer.toml", manifest);
        fixture.write("fake.sh", "echo \"ready addr=127.0.0.1:4711 driver=none $*\"; exec sleep 60\n");
        fixture
    }

    fn peer(&self) -> PathBuf {
        self.directory.path().join("peers/fake-echo")
    }

    /// Writes a source file with a modification time one hour in the past.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.peer().join(name), text).unwrap();
        self.date(name, SystemTime::now() - Duration::from_secs(3600));
    }

    fn date(&self, name: &str, when: SystemTime) {
        let file = fs::File::options().append(true).open(self.peer().join(name)).unwrap();
        file.set_modified(when).unwrap();
    }

    fn peers(&self) -> Peers {
        Peers::open(&self.directory.path().join("peers"), &self.directory.path().join("out")).unwrap()
    }
}

#[test]
fn peer_is_rebuilt_after_source_change_or_on_request() {
    let fixture = PeerFixture::new(FAKE);
    let (peers, tools) = (fixture.peers(), Toolchains::from_environment());
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

    fixture.date("fake.sh", SystemTime::now() + Duration::from_secs(3600));
    assert!(matches!(peer.state(), State::Outdated(_)));
    assert!(matches!(peer.build(&tools, false), Outcome::Built(_)));
    fixture.date("fake.sh", SystemTime::now() - Duration::from_secs(3600));
    assert!(matches!(peer.state(), State::Built(_)));

    fs::remove_file(peer.out.join("bin/fake")).unwrap();
    assert_eq!(peer.state(), State::NotBuilt, "its program was deleted");
}

#[test]
fn built_peer_provides_startable_contenders() {
    let fixture = PeerFixture::new(FAKE);
    let peers = fixture.peers();
    assert!(matches!(peers.all()[0].build(&Toolchains::from_environment(), false), Outcome::Built(_)));
    let contenders = peers.contenders(Protocol::Echo, "0,1");
    let [one, two] = contenders.as_slice() else { panic!("{contenders:?}") };
    let facts = (one.name.as_str(), one.driver.as_deref(), one.kind);
    assert_eq!(facts, ("fake one", Some("epoll"), Some(Kind::Loop)));
    assert_eq!((two.version.as_deref(), two.built_with.as_deref()), (Some("5.2"), Some("Shell (sh 1)")));
    assert_eq!((two.connections_limit, two.warm_up), (Some(7), Duration::from_secs(3)));
    assert_eq!(two.features, ["twice"]);

    let core = anello_lab::machine::allowed_cores()[0];
    let (_process, running) = ServerProcess::start(two, &[], &[core], Duration::from_secs(20)).unwrap();
    assert!(running.ready_line.ends_with("--addr 127.0.0.1:0 --cores 0,1 --twice"), "{}", running.ready_line);
}

#[test]
fn http_peers_receive_document_root_and_are_not_echo_contenders() {
    let http =
        FAKE.replace("kind = \"loop\"", "kind = \"server\"\nprotocol = \"http\"\nserves = [\"files\"]");
    let fixture = PeerFixture::new(&http);
    let peers = fixture.peers();
    assert!(matches!(peers.all()[0].build(&Toolchains::from_environment(), false), Outcome::Built(_)));
    assert!(peers.contenders(Protocol::Echo, "0").is_empty());
    let contenders = peers.contenders(Protocol::Http, "0");
    let [one, two] = contenders.as_slice() else { panic!("{contenders:?}") };
    assert_eq!(one.serves, [Serves::Files]);
    let end = ["--cores", "0", "--root", ROOT, "--twice"];
    assert!(two.arguments.ends_with(&end.map(String::from)), "{:?}", two.arguments);
}

#[test]
fn build_records_origin_of_library_and_server() {
    let pinned = FAKE
        .replace("library = \"shell\"", "library = \"example.org/shell\"")
        .replace("\"echo 5.2\"", "\"echo v0.0.0-20220926161041-69611e8b13d5\"");
    let fixture = PeerFixture::new(&pinned);
    fixture.write(
        "go.sum",
        "example.org/shell v0.0.0-20220926161041-69611e8b13d5/go.mod h1:no\n\
         example.org/shell v0.0.0-20220926161041-69611e8b13d5 h1:yes=\n",
    );
    let has_commit = git::is_here();
    if has_commit {
        for words in [&["init"][..], &["add", "."], &["commit", "-m", "one"]] {
            git::git(&fixture.directory.path().join("peers"), words);
        }
    }
    let built = || fixture.peers().all()[0].build(&Toolchains::from_environment(), true);
    let Outcome::Built(first) = built() else { panic!("not built") };
    assert_eq!(first.origin.library_checksum.as_deref(), Some("h1:yes="));
    assert_eq!(first.origin.library_commit.as_deref(), Some("69611e8b13d5"));
    assert_eq!(first.origin.server_commit.is_some(), has_commit);
    let recorded = || {
        let contender = fixture.peers().contenders(Protocol::Echo, "0").remove(0);
        Origin {
            library_checksum: contender.library_checksum,
            library_commit: contender.commit,
            server_commit: contender.server_commit,
        }
    };
    assert_eq!(recorded(), first.origin);
    fixture.write("fake.sh", "echo changed\n");
    let Outcome::Built(second) = built() else { panic!("not built") };
    let changed = first.origin.server_commit.as_ref().map(|commit| format!("{commit}+changes"));
    assert_eq!(second.origin.server_commit, changed);

    // Write the record in the format of an older version.
    let record = fixture.peers().all()[0].out.join("built.json");
    let mut built: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    built.as_object_mut().unwrap().remove("origin").unwrap();
    fs::write(&record, built.to_string()).unwrap();
    let pinned = Origin { server_commit: None, ..first.origin };
    assert_eq!(recorded(), pinned, "the origin from the lock file needs no build");
}

#[test]
fn missing_toolchain_is_reported_without_building() {
    let fixture = PeerFixture::new(FAKE);
    let tools = tempfile::tempdir().unwrap();
    let shell = tools.path().join("sh");
    fs::write(&shell, "").unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    // This file exists but is not executable.
    fs::write(tools.path().join("cp"), "").unwrap();
    let peers = fixture.peers();
    let outcome = peers.all()[0].build(&Toolchains::new(tools.path().as_os_str()), true);
    assert_eq!(outcome, Outcome::Missing(vec!["cp".to_owned()]));
    assert_eq!(peers.all()[0].manifest.hint.as_deref(), Some("it needs a shell"));
    assert!(!fixture.directory.path().join("out").exists());
    let none = fixture.peers().all()[0].missing_programs(&Toolchains::new(OsStr::new("")));
    assert_eq!(none, ["sh", "cp"]);
}

#[test]
fn failed_build_reports_last_lines_and_invalidates_old_build() {
    let fixture = PeerFixture::new(FAKE);
    let tools = Toolchains::from_environment();
    assert!(matches!(fixture.peers().all()[0].build(&tools, false), Outcome::Built(_)));
    let broken = FAKE.replace("echo copying", "echo no such header: uv.h; exit 3");
    fixture.write("peer.toml", &broken);
    let peers = fixture.peers();
    let Outcome::Failed { why, last_lines, log, .. } = peers.all()[0].build(&tools, true) else { panic!() };
    assert!(why.contains("exit status: 3"), "{why}");
    assert_eq!(last_lines.last().map(String::as_str), Some("no such header: uv.h"));
    assert!(log.is_file());
    assert_eq!(peers.all()[0].state(), State::NotBuilt, "the earlier build is not used");
}

#[test]
fn build_without_program_fails() {
    let fixture = PeerFixture::new(
        &FAKE.replace("\"fake.sh\", \"{out}/bin/fake\"", "\"fake.sh\", \"{out}/bin/other\""),
    );
    let peers = fixture.peers();
    let outcome = peers.all()[0].build(&Toolchains::from_environment(), false);
    let Outcome::Failed { why, .. } = outcome else { panic!("{outcome:?}") };
    assert!(why.contains("did not create") && why.ends_with("out/fake/bin/fake"), "{why}");
}

#[test]
fn peers_are_found_by_name_and_manifest_errors_name_location() {
    let fixture = PeerFixture::new(FAKE);
    let peers = fixture.peers();
    for name in ["fake", "fake-echo", "fake two"] {
        assert_eq!(peers.named(&[name.to_owned()]).unwrap().len(), 1, "{name}");
    }
    let unknown = peers.named(&["tokyo".to_owned()]).unwrap_err().to_string();
    assert!(unknown.contains("\"tokyo\"") && unknown.contains("known peers: fake"), "{unknown}");

    let directory = fixture.directory.path().join("peers");
    let open = || Peers::open(&directory, &directory).unwrap_err().to_string();
    fixture.write("peer.toml", &FAKE.replace("driver = \"epoll\"", "driver = \"select\""));
    assert!(open().contains("fake-echo/peer.toml:16: "), "{}", open());
    fixture.write("peer.toml", &FAKE.replace("fake two", "fake one"));
    assert!(open().contains("duplicate contender name \"fake one\""), "{}", open());
    fs::remove_file(fixture.peer().join("peer.toml")).unwrap();
    assert!(open().contains("no subdirectory contains a peer.toml"), "{}", open());
}

#[test]
fn lock_files_have_checksums_of_all_libraries() {
    let out = tempfile::tempdir().unwrap();
    for peer in Peers::open(&real_peers(), out.path()).unwrap().all() {
        let version = peer.manifest.version.as_deref();
        let has_lock = ["Cargo.lock", "go.sum"].iter().any(|name| peer.folder.join(name).is_file());
        let origin = Origin::pinned(&peer.folder, &peer.manifest.library, version.unwrap_or("0"));
        match version {
            Some(_) if has_lock => {
                let checksum = origin.library_checksum.expect(&peer.manifest.name);
                let kind = if peer.manifest.language == "Go" { "h1:" } else { "sha256:" };
                assert!(checksum.starts_with(kind) && checksum.len() > 40, "{checksum}");
            }
            _ => assert_eq!(origin.library_checksum, None, "{}", peer.manifest.name),
        }
    }
}

#[test]
fn checksum_matches_name_and_version() {
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join("Cargo.lock");
    let checksum =
        |library: &str, version: &str| Origin::pinned(directory.path(), library, version).library_checksum;
    let text = "[[package]]\nname = \"x\"\nversion = \"1.0.0\"\nchecksum = \"aa\"\n\
                [[package]]\nname = \"x\"\nversion = \"2.0.0\"\nchecksum = \"bb\"\n\
                [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
    fs::write(&lock, text).unwrap();
    assert_eq!(checksum("x", "2.0.0").as_deref(), Some("sha256:bb"));
    assert_eq!(checksum("x", "3.0.0"), None);
    assert_eq!(checksum("own", "0.1.0"), None, "a path dependency has no checksum");
    fs::write(&lock, "no lock file").unwrap();
    assert_eq!(checksum("x", "1.0.0"), None);
}
