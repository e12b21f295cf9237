//! Tests for scenario files and how they are resolved on different machines.

use std::path::PathBuf;
use std::time::Duration;

use anello_lab::peers::Serves;
use anello_lab::{
    Cell, Contender, LabConfig, PRESETS, Resources, Role, Target, Workload, echo_cells, preset, resolve,
};

/// Returns a machine with this many cores.
pub fn machine(cores: usize) -> Resources {
    Resources {
        executable: PathBuf::from("/usr/bin/anello"),
        cores: (0..cores).collect(),
        siblings: (0..cores).map(|core| vec![core]).collect(),
        load_core: None,
        connections_limit: 20_000,
        peers: vec![Contender {
            driver: Some("epoll".to_owned()),
            ..Contender::new("tokio", "/peers/tokio".as_ref(), &["--cores", "{cores}"])
        }],
        unbuilt_peers: vec!["gnet".to_owned()],
        http_peers: vec![
            Contender {
                takes_tls: true,
                ..http_peer("nginx", &["--root", "{root}", "--cores", "{cores}"], &[Serves::Files])
            },
            http_peer("hyper", &["--cores", "{cores}"], &[Serves::Fixed]),
        ],
        unbuilt_http_peers: vec!["caddy".to_owned()],
        disk_file: PathBuf::from("/tmp/disk"),
    }
}

fn http_peer(name: &str, arguments: &[&str], serves: &[Serves]) -> Contender {
    let program = format!("/peers/{name}");
    Contender { serves: serves.to_vec(), ..Contender::new(name, program.as_ref(), arguments) }
}

#[test]
fn sibling_threads_are_used_last_and_reported() {
    let with = |siblings: &[&[usize]]| {
        let siblings: Vec<Vec<usize>> = siblings.iter().map(|cores| cores.to_vec()).collect();
        let resources = Resources { cores: (0..siblings.len()).collect(), siblings, ..machine(0) };
        resolve("mine.toml", MINIMAL, &resources).unwrap()
    };
    let warns = |config: &LabConfig| config.scenario.scaling.iter().any(|note| note.contains("SMT"));
    let four = with(&[&[0, 1], &[0, 1], &[2, 3], &[2, 3]]);
    assert_eq!((four.cores.server.as_slice(), four.cores.load.as_slice()), (&[0][..], &[2][..]));
    assert!(!warns(&four));
    let two = with(&[&[0, 1], &[0, 1]]);
    assert_eq!((two.cores.server.as_slice(), two.cores.load.as_slice()), (&[0][..], &[1][..]));
    assert!(warns(&two));
    assert!(
        two.scenario.scaling.iter().any(|note| note.starts_with("Cores 0 and 1 are hardware threads of one"))
    );
    let separate = with(&[&[0], &[1]]);
    assert_eq!((separate.cores.load.as_slice(), warns(&separate)), (&[1][..], false));
    assert!(!warns(&with(&[&[0, 1]])), "the sibling is not used");
    let siblings = vec![vec![0, 1], vec![0, 1]];
    let remote = Resources { siblings, load_core: Some(7), ..machine(2) };
    let remote = resolve("mine.toml", MINIMAL, &remote).unwrap();
    assert_eq!((remote.cores.server.as_slice(), remote.cores.load.as_slice()), (&[0][..], &[7][..]));
    assert!(!warns(&remote), "the load generator is on another host");
}

const MINIMAL: &str = r#"
name = "mine"
title = "Mine"
message_bytes = [128]
connections = [1, 50]
contenders = ["bare epoll", "tokio"]
reference = "bare epoll"
rounds = 3
passes = 2
slice = "64ms"
warm_up = "20ms"
"#;

pub fn resolve_error(text: &str) -> String {
    resolve("mine.toml", text, &machine(2)).unwrap_err().to_string()
}

#[test]
fn quick_takes_a_minute_and_smoke_takes_seconds() {
    let quick = LabConfig::preset("quick", PathBuf::from("anello")).unwrap();
    assert_eq!(quick.validate(), Ok(()));
    assert_eq!((quick.cells.len(), quick.contenders.len(), quick.check), (6, 8, true));
    assert!((35..55).contains(&quick.load_time().as_secs()), "{:?}", quick.load_time());
    assert!((40..75).contains(&quick.estimated_time().as_secs()), "{:?}", quick.estimated_time());
    let smoke = LabConfig::preset("smoke", PathBuf::from("anello")).unwrap();
    assert_eq!(smoke.validate(), Ok(()));
    assert!(smoke.load_time().as_secs() < 5, "{:?}", smoke.load_time());
    let (load, total) = (smoke.load_time(), smoke.estimated_time());
    let mut slow = smoke.clone();
    slow.contenders[0].warm_up = Duration::from_secs(10);
    let own_warm_up = Duration::from_secs(10) * slow.timing.passes as u32;
    assert_eq!((slow.load_time(), slow.estimated_time()), (load + own_warm_up, total + own_warm_up));
}

#[test]
#[should_panic(expected = "joakimthun")]
fn unknown_preset_panics_with_names_of_presets() {
    LabConfig::preset("nginx", PathBuf::new()).ok();
}

#[test]
fn aa_contenders_run_the_reference_command_in_100_cells() {
    let config = LabConfig::preset("aa", PathBuf::from("/bin/anello")).unwrap();
    let command = config.contenders[0].command_line();
    assert_eq!((config.cells.len(), config.contenders.len()), (100, 4));
    assert!(config.contenders.iter().all(|contender| contender.command_line() == command), "{command}");
}

#[test]
fn every_preset_resolves_on_every_machine_with_one_twin() {
    for (name, text) in PRESETS {
        for cores in [1, 2, 3, 16, 64] {
            let config = resolve(name, text, &machine(cores)).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(config.validate(), Ok(()), "{name}");
            assert_eq!(config.scenario.name, name);
            assert_eq!(config.scenario.text, text);
            let twins = config.contenders.iter().filter(|contender| contender.twin_of.is_some());
            assert_eq!(twins.count(), 1, "{name}");
            // The reference is not anello, so that two builds of anello can be compared. The exception is the preset
            // monoio-peak, because it uses several cores, which no baseline supports.
            let reference =
                config.contenders.iter().find(|contender| contender.name == config.reference).unwrap();
            assert_eq!(reference.role == Role::Anello, name == "monoio-peak", "{name}");
            let idle = config.cells.iter().all(|cell| cell.workload == Workload::Idle);
            let processes =
                if idle { config.timing.rounds * config.timing.passes } else { config.timing.passes };
            assert!(processes >= 7, "{name}: too few processes for a verdict if a slice is lost");
            assert!(!config.cores.server.contains(&config.cores.load[0]) || cores == 1, "{name}");
            let minutes = config.estimated_time().as_secs() / 60;
            assert!(minutes < 45, "{name} takes {minutes} minutes on {cores} cores");
        }
    }
}

#[test]
fn unavailable_resources_are_omitted_with_a_note() {
    let peak = |cores: usize| resolve("peak", preset("monoio-peak").unwrap(), &machine(cores)).unwrap();
    let small = peak(2);
    assert!(small.cells.iter().all(|cell| cell.server_cores == 1));
    let scaling = small.scenario.scaling.join("\n");
    assert!(
        scaling.contains("2, 4, 8, 16 server cores (usable cores: 2, including one for the load generator)")
    );
    assert!(scaling.contains("Peers omitted because they are not built: gnet"), "{scaling}");
    let large = peak(9);
    let largest = large.cells.iter().max_by_key(|cell| cell.server_cores).unwrap();
    assert_eq!((largest.server_cores, large.cores.server.len(), large.cores.load[0]), (8, 8, 8));
    assert!(large.cells.contains(&Cell { server_cores: 4, ..Cell::echo(100, 680) }));
    assert!(large.scenario.scaling.iter().any(|note| note.contains("The load generator has one thread")));
    let idle = Resources { connections_limit: 2_000, ..machine(2) };
    let idle = resolve("idle", preset("idle").unwrap(), &idle).unwrap();
    assert_eq!(idle.cells, [Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) }]);
    assert!(idle.scenario.scaling.iter().any(|note| note.contains("5000 connections")));
}

#[test]
fn contender_with_further_core_is_omitted_if_no_core_is_left() {
    let options = |cores: usize| resolve("options", preset("options").unwrap(), &machine(cores)).unwrap();
    let pinned = |config: &LabConfig| {
        let contender = config.contenders.iter().find(|contender| contender.name == "SQPOLL pinned");
        contender.map(|contender| contender.command_line())
    };
    let small = options(2);
    assert_eq!((pinned(&small), small.cores.further), (None, None));
    let scaling = small.scenario.scaling.join("\n");
    let omitted = "Omitted because they need a core in addition to those of the servers and the load generator, and \
                   only 2 cores are usable: SQPOLL pinned";
    assert!(scaling.contains(omitted), "{scaling}");
    let large = options(3);
    assert!(pinned(&large).unwrap().contains("--sqpoll-core 2 "), "{:?}", pinned(&large));
    assert_eq!((large.cores.server.as_slice(), large.cores.load.as_slice()), (&[0][..], &[1][..]));
    assert_eq!(large.cores.further, Some(2));
    assert!(!large.scenario.scaling.join("\n").contains("Omitted"));
}

#[test]
fn disk_scenarios_have_separate_contenders_and_keys() {
    let config = resolve("disk", preset("disk").unwrap(), &machine(2)).unwrap();
    assert_eq!(config.cells.len(), 4 * 2 * 4);
    assert!(config.contenders[0].command_line().contains("bare disk --engine pread --file disk"));
    let mixed = preset("disk").unwrap().replace("depth =", "connections = [1]\ndepth =");
    assert!(resolve_error(&mixed).contains("key connections requires protocol echo, http or idle, not disk"));
    let cores = preset("disk").unwrap().replace("depth =", "server_cores = [1]\ndepth =");
    assert!(
        resolve_error(&cores).contains("key server_cores requires protocol echo, http or idle"),
        "{}",
        resolve_error(&cores)
    );
    let single = format!("{}\n[[cells]]\nconnections = 7\nmessage_bytes = 1\n", preset("disk").unwrap());
    assert!(
        resolve_error(&single).contains("key cells requires protocol echo, http or idle"),
        "{}",
        resolve_error(&single)
    );
    let idle = preset("idle").unwrap().replace("connections =", "server_cores = [1]\nconnections =")
        + "\n[[cells]]\nconnections = 7\n";
    assert_eq!(resolve("idle", &idle, &machine(2)).unwrap().cells.len(), 3);
}

pub const HTTP: &str = r#"
name = "mine"
title = "Mine"
protocol = "http"
targets = ["hello.txt", "10m.bin"]
connections = [1, 50]
contenders = ["anello epoll", "peers"]
reference = ["caddy", "nginx", "anello epoll"]
rounds = 3
passes = 2
slice = "64ms"
warm_up = "20ms"
"#;

pub fn names(config: &LabConfig) -> Vec<&str> {
    config.contenders.iter().map(|contender| contender.name.as_str()).collect()
}

#[test]
fn http_contenders_without_requested_target_are_omitted() {
    let config = resolve("mine.toml", HTTP, &machine(2)).unwrap();
    let cells = [Target::Hello, Target::Huge].map(|target| [1, 50].map(|count| Cell::http(target, count)));
    assert_eq!(config.cells, cells.concat());
    assert_eq!(names(&config), ["anello epoll", "nginx", "nginx again"]);
    assert_eq!(config.reference, "nginx");
    let command =
        "anello http {root} --driver epoll --cores {cores} --keep-alive-timeout 75s --addr 127.0.0.1:0";
    assert_eq!(config.contenders[0].command_line(), command);
    let scaling = config.scenario.scaling.join("\n");
    for note in [
        "because they are not built: caddy (`anello lab peers build`)",
        "Omitted because they serve none of the requested targets: hyper.",
        "caddy does not participate; the reference is nginx instead.",
    ] {
        assert!(scaling.contains(note), "{note}: {scaling}");
    }
    let fixed = HTTP.replace("10m.bin", "/fixed").replace("[1, 50]", "[1, 50]\npipelining = [1, 16]");
    let config = resolve("mine.toml", &fixed, &machine(2)).unwrap();
    assert_eq!((names(&config).len(), config.cells.len()), (4, 2 * 2 * 2), "hyper serves one of the targets");
    let deep = Workload::Http { target: Target::Fixed, pipelining: 16, reconnect: false, cipher: None };
    assert!(config.cells.contains(&Cell { workload: deep, ..Cell::echo(1, 50) }));
    let alone = Resources { http_peers: Vec::new(), unbuilt_http_peers: Vec::new(), ..machine(2) };
    let config = resolve("mine.toml", HTTP, &alone).unwrap();
    assert_eq!(
        (names(&config), config.reference.as_str()),
        (vec!["anello epoll", "anello epoll again"], "anello epoll")
    );
}

#[test]
fn load_time_includes_large_responses_in_flight() {
    let load_time = |target: &str| {
        let text = HTTP.replace("\"hello.txt\", \"10m.bin\"", target).replace("[1, 50]", "[300]");
        resolve("mine.toml", &text, &machine(2)).unwrap().load_time()
    };
    let (small, large) = (load_time("\"hello.txt\""), load_time("\"10m.bin\""));
    // In each of 2 passes, each of 3 contenders has a warm-up and 3 slices, all with 3 GiB of responses in flight.
    assert!((small.as_millis() as i64 - 3 * 2 * (3 * 64 + 20)).abs() < 2, "{small:?}");
    assert!((28..36).contains(&large.as_secs()), "{large:?}");
}

#[test]
fn rejects_invalid_http_cells_with_position() {
    for (from, to, expected) in [
        ("\"10m.bin\"", "\"11m.bin\"", "5:"),
        ("[1, 50]\n", "[1, 50]\npipelining = [1, 0]\n", "7:18: pipelining must be from 1 (none) to 1024"),
        ("[1, 50]\n", "[1, 50]\npipelining = [1025]\n", "7:15: pipelining must be"),
        (
            "[1, 50]\n",
            "[1, 50]\npipelining = [2]\nreconnect = [false, true]\n",
            "7:15: reconnect and pipelining cannot be combined",
        ),
        (
            "[1, 50]\n",
            "[1, 50]\nmessage_bytes = [1]\n",
            "7:18: key message_bytes requires protocol echo, not http",
        ),
        (
            "targets",
            "# targets",
            "4:12: no cells (add targets with connections or connections_per_core, or individual [[cells]])",
        ),
        ("\"http\"", "\"idle\"", "5:12: key targets requires protocol http, not idle"),
        (
            "reference = [\"caddy\", \"nginx\", \"anello epoll\"]",
            "reference = []",
            "8:13: the reference \"\" is not among",
        ),
        ("[\"caddy\", \"nginx\", \"anello epoll\"]", "7", "the name of a contender, or a list of names"),
    ] {
        let error = resolve_error(&HTTP.replacen(from, to, 1));
        assert!(error.contains(expected), "{to}: {error}");
    }
    let with = |cell: &str| format!("{HTTP}cells = [{{ connections = 1, {cell} }}]\n");
    assert!(resolve_error(&with("pipelining = 2")).contains("cells with protocol http need a target"));
    assert!(
        resolve_error(&with("target = \"/fixed\", message_bytes = 2"))
            .contains("key message_bytes is invalid in cells with protocol http")
    );
    assert!(
        resolve_error(&with("target = \"/fixed\", pipelining = 2, reconnect = true"))
            .contains("cannot be combined")
    );
    assert!(resolve_error(&with("target = \"hello.txt\"")).contains("duplicate cell"));
    let echo = format!("{MINIMAL}cells = [{{ connections = 1, message_bytes = 1, target = \"/fixed\" }}]\n");
    assert!(resolve_error(&echo).contains("key target is invalid in cells with protocol echo (remove it)"));
}

#[test]
fn inline_http_server_serves_declared_or_derived_targets() {
    let with = |keys: &str| {
        HTTP.replace("\"peers\"]", &format!("{{ name = \"mine\", command = \"/bin/mine {{root}}\"{keys} }}]"))
            .replace("\"caddy\", \"nginx\", ", "")
    };
    let serves = |keys: &str| {
        let config = resolve("mine.toml", &with(keys), &machine(2)).unwrap();
        config.contenders.iter().find(|contender| contender.name == "mine").map(|mine| mine.serves.clone())
    };
    assert_eq!(serves(""), Some(vec![Serves::Files]));
    assert_eq!(serves(", serves = [\"files\", \"fixed\"]"), Some(vec![Serves::Files, Serves::Fixed]));
    assert_eq!(serves(", serves = [\"fixed\"]"), None, "omitted: no fixed response is requested");
    assert!(resolve_error(&with(", serves = []")).contains("serves must not be empty"));
    assert!(resolve_error(&with(", serves = [\"mail\"]")).contains("mail"));
    let echo =
        MINIMAL.replace("\"tokio\"]", "{ name = \"mine\", command = \"/bin/mine\", serves = [\"files\"] }]");
    assert!(
        resolve_error(&echo).contains("the key `serves` requires protocol http, not echo (remove the key)")
    );
}

#[test]
fn rejects_keys_of_other_protocols_and_missing_keys_with_position() {
    let disk = preset("disk").unwrap();
    // Returns the position prefix of an error about the value of `key`, with 1-based line and column.
    let value_of = |text: &str, key: &str| {
        let (number, line) =
            text.lines().enumerate().find(|(_, line)| line.starts_with(&format!("{key} = "))).unwrap();
        let column = key.len() + " = ".len() + 1 + usize::from(line.contains('['));
        format!("mine.toml:{}:{column}: ", number + 1)
    };
    for key in ["operations = [\"random_read\"]", "direct = [true]", "depth = [4]", "block_bytes = [4096]"] {
        let text = format!("{MINIMAL}{key}\n");
        let name = key.split(' ').next().unwrap();
        let error = resolve_error(&text);
        assert!(error.starts_with(&value_of(&text, name)), "{error}");
        assert!(error.contains(&format!("key {name} requires protocol disk, not echo")), "{error}");
        assert!(error.contains(&format!("| {key}\n")), "does not show the line: {error}");
        let idle = text.replace("message_bytes = [128]", "protocol = \"idle\"");
        assert!(resolve_error(&idle).starts_with(&value_of(&idle, name)), "{}", resolve_error(&idle));
    }
    for key in ["operations", "depth", "block_bytes"] {
        let without: String =
            disk.lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect();
        let empty = format!("{key} = []\n{without}");
        for text in [without, empty] {
            let error = resolve_error(&text);
            assert!(error.starts_with(&value_of(&text, "protocol")), "{error}");
            assert!(error.contains(&format!("requires key {key}")), "{error}");
        }
    }
    let idle = preset("idle").unwrap().replace("connections =", "notes = [] #");
    let error = resolve_error(&idle);
    assert!(
        error.starts_with(&value_of(&idle, "protocol")) && error.contains(": no cells (add connections or"),
        "{error}"
    );
    let twice = preset("idle").unwrap().replace("[1000, 5000]", "[7, 7]");
    assert!(resolve_error(&twice).contains("| connections = [7, 7]\n"), "{}", resolve_error(&twice));
    let unknown = disk.replace("\"random_write\"", "\"random_wipe\"");
    let error = resolve_error(&unknown);
    assert!(error.contains("random_wipe") && error.contains("| operations = ["), "{error}");
}

#[test]
fn contenders_are_names_or_inline_commands() {
    let text = MINIMAL.replace(
        "\"tokio\"]",
        r#""peers", "gnet", { name = "mine", command = "{anello} echo --cores {cores}", role = "anello" }]"#,
    );
    let config = resolve("mine.toml", &text, &machine(2)).unwrap();
    let names: Vec<&str> = config.contenders.iter().map(|contender| contender.name.as_str()).collect();
    assert_eq!(names, ["bare epoll", "bare epoll again", "tokio", "mine"]);
    let mine = &config.contenders[3];
    assert_eq!((mine.role, mine.takes_cores()), (Role::Anello, true));
    assert_eq!(mine.program, PathBuf::from("/usr/bin/anello"));
    assert!(
        config
            .scenario
            .scaling
            .iter()
            .any(|note| note.starts_with("gnet is omitted because it is not built"))
    );
}

#[test]
fn contender_may_name_its_base() {
    let with = |against: &str, also: &str| {
        let mine = format!(r#"{{ name = "mine", command = "/bin/mine", base = "{against}" }}"#);
        MINIMAL.replace("\"tokio\"]", &format!("{also}\n    {mine},\n]"))
    };
    let resolved = |text: &str| resolve("mine.toml", text, &machine(2)).unwrap();
    let base = |config: &LabConfig, name: &str| {
        let contender = config.contenders.iter().find(|contender| contender.name == name).unwrap();
        contender.base.clone()
    };
    let config = resolved(&with("bare epoll", ""));
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(base(&config, "mine").as_deref(), Some("bare epoll"));
    assert_eq!((base(&config, "bare epoll"), base(&config, "bare epoll again")), (None, None));
    assert_eq!(base(&resolved(&with("tokio", "\"peers\",")), "mine").as_deref(), Some("tokio"));
    // The twin does not inherit the base of the reference.
    let twice = with("bare epoll", "").replace("reference = \"bare epoll\"", "reference = \"mine\"");
    assert_eq!(base(&resolved(&twice), "mine again"), None);
    // A peer that is not built does not participate and cannot be a base.
    for also in ["\"peers\",", "\"gnet\","] {
        let config = resolved(&with("gnet", also));
        assert_eq!((base(&config, "mine"), config.validate()), (None, Ok(())));
        let scaling = config.scenario.scaling.join("\n");
        assert!(scaling.contains("Base omitted because it does not participate"), "{scaling}");
        assert!(scaling.contains("does not participate: mine (gnet)."), "{scaling}");
    }
    for (against, message) in [
        ("mine", "the base of \"mine\" is \"mine\", which is the contender itself (use the contender"),
        ("gnet", "\"gnet\", which is not among the contenders"),
        ("bare epoll again", "the choices are bare epoll)"),
        ("", "the base of \"mine\" is \"\", which is not among the contenders"),
    ] {
        let error = resolve_error(&with(against, ""));
        assert!(error.starts_with("mine.toml:7:52: ") && error.contains(message), "{error}");
        assert!(
            error.contains(&format!(
                "\n7 |     {{ name = \"mine\", command = \"/bin/mine\", base = \"{against}\" }},\n"
            )),
            "{error}"
        );
    }
    let number = with("bare epoll", "").replace("base = \"bare epoll\"", "base = 7");
    assert!(resolve_error(&number).starts_with("mine.toml:7:52: "), "{}", resolve_error(&number));
}

#[test]
fn options_preset_has_a_base_for_every_option() {
    let options = |cores: usize| resolve("options", preset("options").unwrap(), &machine(cores)).unwrap();
    let large = options(3);
    let without_base = large.contenders.iter().filter(|contender| contender.base.is_none());
    let without_base: Vec<&str> = without_base.map(|contender| contender.name.as_str()).collect();
    assert_eq!(
        without_base,
        ["defaults", "defaults again", "bare io_uring", "bare epoll", "anello io_uring"]
    );
    assert!(large.scenario.scaling.iter().any(|note| note.contains("On loopback, the kernel copies")));
    let small = options(2);
    let missing = |contender: &&Contender| !small.contenders.contains(contender);
    let missing: Vec<&str> =
        large.contenders.iter().filter(missing).map(|contender| contender.name.as_str()).collect();
    assert_eq!(missing, ["SQPOLL pinned", "anello SQPOLL pinned"], "a base is missing");
}

#[test]
fn single_cells_are_added_and_rates_extend_slices() {
    let text = MINIMAL.replace("message_bytes = [128]\nconnections = [1, 50]\n", "")
        + "[[cells]]\nconnections = 80\nmessage_bytes = 100\nrate_per_second = 20000\n\
           [[cells]]\nconnections = 7\nmessage_bytes = 1\nserver_cores = 5\n";
    let config = resolve("mine.toml", &text, &machine(2)).unwrap();
    assert_eq!(config.cells, [Cell { offered_per_second: Some(20_000), ..Cell::echo(100, 80) }]);
    assert_eq!(config.timing.slice, Duration::from_millis(250));
    assert_eq!(config.scenario.scaling.len(), 2, "{:?}", config.scenario.scaling);
}

#[test]
fn errors_report_position_and_remedy() {
    let error = resolve_error(&MINIMAL.replace("\"tokio\"", "\"tokyo\""));
    assert!(error.starts_with("mine.toml:6:29: unknown contender \"tokyo\" (choose one of"), "{error}");
    assert!(error.contains("6 | contenders = [\"bare epoll\", \"tokyo\"]\n"), "{error}");
    assert!(error.ends_with(&format!("  | {}^", " ".repeat(28))), "{error}");
    let error = resolve_error(&format!("server_share = 1.5\n{MINIMAL}"));
    assert!(error.starts_with("mine.toml:1:16: server_share must be from 0.1 to 1, not 1.5"), "{error}");
    let error = resolve_error(&MINIMAL.replace("rounds = 3", "round = 3"));
    assert!(error.contains("8:1: unknown field `round`, expected one of"), "{error}");
    let error = resolve_error(&MINIMAL.replace("[1, 50]", "[1, 0]"));
    assert!(
        error.starts_with("mine.toml:5:19: ")
            && error.contains("connections (or depth in disk cells) must be at least 1"),
        "{error}"
    );
    let error = resolve_error(&MINIMAL.replace("\"64ms\"", "64"));
    assert!(error.starts_with("mine.toml:10:9: "), "{error}");
    let error = resolve_error(&MINIMAL.replace("\"64ms\"", "\"64 m\""));
    assert!(error.contains("expected \"64ms\""), "{error}");
    assert!(resolve_error(&MINIMAL.replace("[1, 50]", "[50, 50]")).contains("duplicate cell"));
    assert!(
        resolve_error(&MINIMAL.replace("passes = 2", "passes = 0")).contains("passes must be at least 1")
    );
    let error = resolve_error(&MINIMAL.replace("reference = \"bare epoll\"", "reference = \"tokyo\""));
    assert!(error.contains("7:13: the reference \"tokyo\" is not among the contenders"), "{error}");
    let error = resolve_error(&MINIMAL.replace("\"tokio\"]", "{ name = \"x\", comand = \"y\" }]"));
    assert!(error.contains("unknown field `comand`"), "{error}");
    assert!(resolve_error(&MINIMAL.replace("\"tokio\"]", "7]")).contains("the name of a contender, or {"));
    assert!(resolve_error(&MINIMAL.replace("connections = [1, 50]\n", "")).contains("[[cells]]"));
    assert!(resolve_error("name = [").starts_with("mine.toml:1:"));
    assert!(
        resolve_error(&MINIMAL.replace("name = \"mine\"", "name = \" \"")).starts_with("mine.toml:2:8: ")
    );
    let error = resolve_error(&MINIMAL.replace("passes = 2", "passes = 9223372036854775807"));
    assert!(error.starts_with("mine.toml:9:10: ") && error.contains("at most 100000"), "{error}");
    let per_core = "connections_per_core = [4611686018427387904]\nserver_cores = [1, 8]";
    let error = resolve_error(&MINIMAL.replace("connections = [1, 50]", per_core));
    assert!(error.contains("at most 1073741824"), "{error}");
}

#[test]
fn validate_names_the_invalid_field() {
    let good = LabConfig::preset("quick", PathBuf::from("anello")).unwrap();
    let resolve_error = |change: &dyn Fn(&mut LabConfig)| {
        let mut config = good.clone();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    assert!(resolve_error(&|config| config.reference = "nginx".into()).contains("bare epoll"));
    assert!(resolve_error(&|config| config.cores.server_share = 0.0).contains("server_share"));
    assert!(resolve_error(&|config| config.timing.stolen_fraction_limit = f64::NAN).contains("stolen"));
    assert!(resolve_error(&|config| config.timing.rounds = 0).contains("rounds"));
    assert!(resolve_error(&|config| config.timing.passes = usize::MAX).contains("passes"));
    assert!(
        resolve_error(&|config| (config.timing.passes, config.timing.rounds) = (90_000, 90_000))
            .contains("slices")
    );
    assert!(resolve_error(&|config| config.timing.slice = Duration::from_secs(4000)).contains("3600s"));
    assert!(resolve_error(&|config| config.cells[0].connections = usize::MAX).contains("at most"));
    assert!(resolve_error(&|config| config.cells = echo_cells(&[128], &[50, 0])).contains("at least 1"));
    assert!(resolve_error(&|config| config.cells = echo_cells(&[0], &[50])).contains("message size"));
    assert!(resolve_error(&|config| config.cells.clear()).contains("nothing to measure"));
    assert!(resolve_error(&|config| config.cells[1] = config.cells[0]).contains("duplicate cell"));
    assert!(resolve_error(&|config| config.cells[0].server_cores = 2).contains("not 2"));
    assert!(resolve_error(&|config| config.cells[0].offered_per_second = Some(0)).contains("offered rate"));
    assert!(resolve_error(&|config| config.contenders[0].name = "bare epoll".into()).contains("rename"));
    let missing = resolve_error(&|config| config.contenders[0].base = Some("nginx".into()));
    assert!(missing.contains("is \"nginx\", which is not among the contenders"), "{missing}");
}

#[test]
fn duration_requires_number_and_unit() {
    let with = |slice: &str| MINIMAL.replace("64ms", slice);
    for (text, slice) in [("64ms", Duration::from_millis(64)), ("1.5s", Duration::from_millis(1500))] {
        assert_eq!(resolve("mine.toml", &with(text), &machine(2)).unwrap().timing.slice, slice, "{text}");
    }
    for wrong in ["", "10", "s", "-1s", "10 s", "3h"] {
        assert!(resolve_error(&with(wrong)).contains("invalid duration"), "{wrong}");
    }
}

#[test]
fn error_shows_position_and_line() {
    let error = resolve_error("name = \"x\"\ntitle = \"ü\" 5\n");
    assert!(error.starts_with("mine.toml:2:13: "), "{error}");
    assert!(error.ends_with("2 | title = \"ü\" 5\n  |             ^"), "{error}");
    let at_end = resolve_error("x");
    assert!(at_end.starts_with("mine.toml:1:2: "), "{at_end}");
}
