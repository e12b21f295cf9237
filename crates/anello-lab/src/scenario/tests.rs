//! Scenarios as they are written, and what becomes of them on machines of all kinds.

mod https;

use super::*;
use crate::contender::Role;
use crate::peers::Serves;
use crate::site::Target;

/// A machine with so many cores.
fn machine(cores: usize) -> Resources {
    Resources {
        executable: PathBuf::from("/usr/bin/anello"),
        cores: (0..cores).collect(),
        siblings: (0..cores).map(|core| vec![core]).collect(),
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
fn siblings_of_a_physical_core_are_used_last_and_spoken_of() {
    let with = |siblings: &[&[usize]]| {
        let siblings: Vec<Vec<usize>> = siblings.iter().map(|cores| cores.to_vec()).collect();
        let resources = Resources { cores: (0..siblings.len()).collect(), siblings, ..machine(0) };
        resolve("mine.toml", MINIMAL, &resources).unwrap()
    };
    let cautious = |config: &LabConfig| config.scenario.scaling.iter().any(|note| note.contains("SMT"));
    let four = with(&[&[0, 1], &[0, 1], &[2, 3], &[2, 3]]);
    assert_eq!((four.server_cores.as_slice(), four.load_cores.as_slice()), (&[0][..], &[2][..]));
    assert!(!cautious(&four));
    let two = with(&[&[0, 1], &[0, 1]]);
    assert_eq!((two.server_cores.as_slice(), two.load_cores.as_slice()), (&[0][..], &[1][..]));
    assert!(cautious(&two));
    assert!(two.scenario.scaling.iter().any(|note| note.starts_with("Cores 0 and 1 are threads of one")));
    let apart = with(&[&[0], &[1]]);
    assert_eq!((apart.load_cores.as_slice(), cautious(&apart)), (&[1][..], false));
    assert!(!cautious(&with(&[&[0, 1]])), "the other thread is not ours");
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

fn fault(text: &str) -> String {
    resolve("mine.toml", text, &machine(2)).unwrap_err().to_string()
}

#[test]
fn the_quick_run_takes_about_a_minute_and_the_smoke_run_seconds() {
    let quick = LabConfig::quick(PathBuf::from("anello"));
    assert_eq!(quick.validate(), Ok(()));
    assert_eq!((quick.cells.len(), quick.contenders.len(), quick.check), (6, 8, true));
    assert!((35..55).contains(&quick.load_time().as_secs()), "{:?}", quick.load_time());
    assert!((40..75).contains(&quick.estimated_time().as_secs()), "{:?}", quick.estimated_time());
    let smoke = LabConfig::smoke(PathBuf::from("anello"));
    assert_eq!(smoke.validate(), Ok(()));
    assert!(smoke.load_time().as_secs() < 5, "{:?}", smoke.load_time());
    let (load, all) = (smoke.load_time(), smoke.estimated_time());
    let mut slow = smoke.clone();
    slow.contenders[0].warm_up = Duration::from_secs(10);
    let own = Duration::from_secs(10) * slow.passes as u32;
    assert_eq!((slow.load_time(), slow.estimated_time()), (load + own, all + own));
    assert!(LabConfig::preset("nginx", PathBuf::new()).unwrap_err().contains("joakimthun"));
}

#[test]
fn the_copies_of_aa_run_the_reference_s_own_command_in_a_hundred_cells() {
    let config = LabConfig::preset("aa", PathBuf::from("/bin/anello")).unwrap();
    let command = config.contenders[0].command_line();
    assert_eq!((config.cells.len(), config.contenders.len()), (100, 4));
    assert!(config.contenders.iter().all(|contender| contender.command_line() == command), "{command}");
}

#[test]
fn every_preset_fits_every_machine_and_has_its_reference_twice() {
    for (name, text) in PRESETS {
        for cores in [1, 2, 3, 16, 64] {
            let config = resolve(name, text, &machine(cores)).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(config.validate(), Ok(()), "{name}");
            assert_eq!(config.scenario.name, name);
            assert_eq!(config.scenario.text, text);
            let twins = config.contenders.iter().filter(|contender| contender.twin_of.is_some());
            assert_eq!(twins.count(), 1, "{name}");
            // Two builds of anello cannot be compared by themselves. There no yardstick takes several cores.
            let reference = &config.contenders[config.reference_index().unwrap()];
            assert_eq!(reference.role == Role::Anello, name == "monoio-peak", "{name}");
            let idle = config.cells.iter().all(|cell| cell.workload == Workload::Idle);
            let processes = if idle { config.rounds * config.passes } else { config.passes };
            assert!(processes >= 7, "{name}: enough processes for a verdict, even if a slice is lost");
            assert!(!config.server_cores.contains(&config.load_cores[0]) || cores == 1, "{name}");
            let minutes = config.estimated_time().as_secs() / 60;
            assert!(minutes < 45, "{name} takes {minutes} minutes on {cores} cores");
        }
    }
}

#[test]
fn what_a_machine_has_not_is_left_out_and_said() {
    let peak = |cores: usize| resolve("peak", preset("monoio-peak").unwrap(), &machine(cores)).unwrap();
    let small = peak(2);
    assert!(small.cells.iter().all(|cell| cell.server_cores == 1));
    let scaling = small.scenario.scaling.join("\n");
    assert!(scaling.contains("2, 4, 8, 16 server cores; of the 2 that may be used here one is the load's"));
    assert!(scaling.contains("Peers that are not built here and take no part: gnet"), "{scaling}");
    let large = peak(9);
    let most = large.cells.iter().max_by_key(|cell| cell.server_cores).unwrap();
    assert_eq!((most.server_cores, large.server_cores.len(), large.load_cores[0]), (8, 8, 8));
    assert!(large.cells.contains(&Cell { server_cores: 4, ..Cell::echo(100, 680) }));
    assert!(large.scenario.scaling.iter().any(|note| note.contains("The load is one thread")));
    let idle = Resources { connections_limit: 2_000, ..machine(2) };
    let idle = resolve("idle", preset("idle").unwrap(), &idle).unwrap();
    assert_eq!(idle.cells, [Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) }]);
    assert!(idle.scenario.scaling.iter().any(|note| note.contains("5000 connections")));
}

#[test]
fn a_further_core_is_given_where_there_is_one_and_its_contender_left_out_elsewhere() {
    let options = |cores: usize| resolve("options", preset("options").unwrap(), &machine(cores)).unwrap();
    let pinned = |config: &LabConfig| {
        let found = config.contenders.iter().find(|contender| contender.name == "SQPOLL pinned");
        found.map(|contender| contender.command_line())
    };
    let small = options(2);
    assert_eq!((pinned(&small), small.further_core), (None, None));
    let scaling = small.scenario.scaling.join("\n");
    let left_out = "Left out, since they need a core beyond those of servers and load, and 2 may be used here: SQPOLL \
                    pinned";
    assert!(scaling.contains(left_out), "{scaling}");
    let large = options(3);
    assert!(pinned(&large).unwrap().contains("--sqpoll-core 2 "), "{:?}", pinned(&large));
    assert_eq!((large.server_cores.as_slice(), large.load_cores.as_slice()), (&[0][..], &[1][..]));
    assert_eq!(large.further_core, Some(2));
    assert!(!large.scenario.scaling.join("\n").contains("Left out"));
}

#[test]
fn disks_have_their_own_contenders_and_keys() {
    let config = resolve("disk", preset("disk").unwrap(), &machine(2)).unwrap();
    assert_eq!(config.cells.len(), 4 * 2 * 4);
    assert!(config.contenders[0].command_line().contains("bare disk --engine pread --file disk"));
    let mixed = preset("disk").unwrap().replace("depth =", "connections = [1]\ndepth =");
    assert!(
        fault(&mixed).contains("the key connections is for echo, http and idle, and the protocol is disk")
    );
    let cores = preset("disk").unwrap().replace("depth =", "server_cores = [1]\ndepth =");
    assert!(fault(&cores).contains("the key server_cores is for echo, http and idle"), "{}", fault(&cores));
    let single = format!("{}\n[[cells]]\nconnections = 7\nmessage_bytes = 1\n", preset("disk").unwrap());
    assert!(fault(&single).contains("the key cells is for echo, http and idle"), "{}", fault(&single));
    let idle = preset("idle").unwrap().replace("connections =", "server_cores = [1]\nconnections =")
        + "\n[[cells]]\nconnections = 7\n";
    assert_eq!(resolve("idle", &idle, &machine(2)).unwrap().cells.len(), 3);
}

const HTTP: &str = r#"
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

fn names(config: &LabConfig) -> Vec<&str> {
    config.contenders.iter().map(|contender| contender.name.as_str()).collect()
}

#[test]
fn http_has_targets_and_whoever_serves_none_of_them_is_left_out() {
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
        "take no part: caddy (`anello lab peers build`)",
        "Left out, since they serve nothing of what is asked for here: hyper.",
        "caddy takes no part here: the others are compared with nginx instead.",
    ] {
        assert!(scaling.contains(note), "{note}: {scaling}");
    }
    let fixed = HTTP.replace("10m.bin", "/fixed").replace("[1, 50]", "[1, 50]\npipelining = [1, 16]");
    let config = resolve("mine.toml", &fixed, &machine(2)).unwrap();
    assert_eq!(
        (names(&config).len(), config.cells.len()),
        (4, 2 * 2 * 2),
        "hyper has an answer to one of them"
    );
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
fn a_slice_of_large_answers_is_longer_than_it_is_said_to_be() {
    let load_time = |target: &str| {
        let text = HTTP.replace("\"hello.txt\", \"10m.bin\"", target).replace("[1, 50]", "[300]");
        resolve("mine.toml", &text, &machine(2)).unwrap().load_time()
    };
    let (small, large) = (load_time("\"hello.txt\""), load_time("\"10m.bin\""));
    // 3 GiB in each of 3 slices and a warm-up, of 3 contenders in 2 passes.
    assert!((small.as_millis() as i64 - 3 * 2 * (3 * 64 + 20)).abs() < 2, "{small:?}");
    assert!((28..36).contains(&large.as_secs()), "{large:?}");
}

#[test]
fn what_http_cells_cannot_be_is_pointed_at() {
    for (from, to, expected) in [
        ("\"10m.bin\"", "\"11m.bin\"", "5:"),
        ("[1, 50]\n", "[1, 50]\npipelining = [1, 0]\n", "7:18: pipelining is from 1, for none, to 1024"),
        ("[1, 50]\n", "[1, 50]\npipelining = [1025]\n", "7:15: pipelining is"),
        (
            "[1, 50]\n",
            "[1, 50]\npipelining = [2]\nreconnect = [false, true]\n",
            "7:15: a connection that takes one request",
        ),
        (
            "[1, 50]\n",
            "[1, 50]\nmessage_bytes = [1]\n",
            "7:18: the key message_bytes is for echo, and the protocol is http",
        ),
        (
            "targets",
            "# targets",
            "4:12: give targets with connections or connections_per_core, or single [[cells]]",
        ),
        ("\"http\"", "\"idle\"", "5:12: the key targets is for http, and the protocol is idle"),
        (
            "reference = [\"caddy\", \"nginx\", \"anello epoll\"]",
            "reference = []",
            "8:13: the reference \"\" is not among",
        ),
        ("[\"caddy\", \"nginx\", \"anello epoll\"]", "7", "the name of a contender, or a list of names"),
    ] {
        let error = fault(&HTTP.replacen(from, to, 1));
        assert!(error.contains(expected), "{to}: {error}");
    }
    let with = |cell: &str| format!("{HTTP}cells = [{{ connections = 1, {cell} }}]\n");
    assert!(fault(&with("pipelining = 2")).contains("a cell for http needs a target"));
    assert!(
        fault(&with("target = \"/fixed\", message_bytes = 2"))
            .contains("a cell for http has no message_bytes")
    );
    assert!(
        fault(&with("target = \"/fixed\", pipelining = 2, reconnect = true"))
            .contains("cannot have several in flight")
    );
    assert!(fault(&with("target = \"hello.txt\"")).contains("is there twice"));
    let echo = format!("{MINIMAL}cells = [{{ connections = 1, message_bytes = 1, target = \"/fixed\" }}]\n");
    assert!(fault(&echo).contains("a cell for echo has no target: remove it"));
}

#[test]
fn an_http_server_given_by_its_command_serves_what_that_says() {
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
    assert_eq!(serves(", serves = [\"fixed\"]"), None, "it is left out: no fixed answer is asked for");
    assert!(fault(&with(", serves = []")).contains("write what it serves"));
    assert!(fault(&with(", serves = [\"mail\"]")).contains("mail"));
    let echo =
        MINIMAL.replace("\"tokio\"]", "{ name = \"mine\", command = \"/bin/mine\", serves = [\"files\"] }]");
    assert!(fault(&echo).contains("the key serves is for http, and the protocol is echo: remove it"));
}

#[test]
fn keys_of_another_protocol_and_keys_that_are_missing_are_pointed_at() {
    let disk = preset("disk").unwrap();
    // Where a line that begins so stands in a text, with the column of its value, from 1.
    let value_of = |text: &str, key: &str| {
        let (line, found) =
            text.lines().enumerate().find(|(_, line)| line.starts_with(&format!("{key} = "))).unwrap();
        let column = key.len() + " = ".len() + 1 + usize::from(found.contains('['));
        format!("mine.toml:{}:{column}: ", line + 1)
    };
    for key in ["operations = [\"random_read\"]", "direct = [true]", "depth = [4]", "block_bytes = [4096]"] {
        let text = format!("{MINIMAL}{key}\n");
        let name = key.split(' ').next().unwrap();
        let error = fault(&text);
        assert!(error.starts_with(&value_of(&text, name)), "{error}");
        assert!(error.contains(&format!("the key {name} is for disk, and the protocol is echo")), "{error}");
        assert!(error.contains(&format!("| {key}\n")), "shows the line: {error}");
        let idle = text.replace("message_bytes = [128]", "protocol = \"idle\"");
        assert!(fault(&idle).starts_with(&value_of(&idle, name)), "{}", fault(&idle));
    }
    for key in ["operations", "depth", "block_bytes"] {
        let without: String =
            disk.lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect();
        let empty = format!("{key} = []\n{without}");
        for text in [without, empty] {
            let error = fault(&text);
            assert!(error.starts_with(&value_of(&text, "protocol")), "{error}");
            assert!(error.contains(&format!("needs the key {key}")), "{error}");
        }
    }
    let idle = preset("idle").unwrap().replace("connections =", "notes = [] #");
    let error = fault(&idle);
    assert!(
        error.starts_with(&value_of(&idle, "protocol")) && error.contains(": give connections or"),
        "{error}"
    );
    let twice = preset("idle").unwrap().replace("[1000, 5000]", "[7, 7]");
    assert!(fault(&twice).contains("| connections = [7, 7]\n"), "{}", fault(&twice));
    let unknown = disk.replace("\"random_write\"", "\"random_wipe\"");
    let error = fault(&unknown);
    assert!(error.contains("random_wipe") && error.contains("| operations = ["), "{error}");
}

#[test]
fn contenders_are_named_or_given() {
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
    assert!(config.scenario.scaling.iter().any(|note| note.starts_with("gnet is not built here")));
}

#[test]
fn a_contender_may_name_the_one_that_it_is_set_against() {
    let with = |against: &str, also: &str| {
        let mine = format!(r#"{{ name = "mine", command = "/bin/mine", against = "{against}" }}"#);
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
    // The twin of the reference is no second one of the option.
    let twice = with("bare epoll", "").replace("reference = \"bare epoll\"", "reference = \"mine\"");
    assert_eq!(base(&resolved(&twice), "mine again"), None);
    // A peer that is not built takes no part, and nobody can be set against it.
    for also in ["\"peers\",", "\"gnet\","] {
        let config = resolved(&with("gnet", also));
        assert_eq!((base(&config, "mine"), config.validate()), (None, Ok(())));
        let scaling = config.scenario.scaling.join("\n");
        assert!(scaling.contains("Not set against the one that differs in nothing else"), "{scaling}");
        assert!(scaling.contains("takes no part here: mine (gnet)."), "{scaling}");
    }
    for (against, why) in [
        ("mine", "\"mine\" is to be set against \"mine\", which is itself: name the one"),
        ("gnet", "\"gnet\", which is not among the contenders"),
        ("bare epoll again", "one of bare epoll, or leave the key out"),
        ("", "against \"\", which is not among the contenders"),
    ] {
        let error = fault(&with(against, ""));
        assert!(error.starts_with("mine.toml:7:55: ") && error.contains(why), "{error}");
        assert!(
            error.contains(&format!(
                "\n7 |     {{ name = \"mine\", command = \"/bin/mine\", against = \"{against}\" }},\n"
            )),
            "{error}"
        );
    }
    let number = with("bare epoll", "").replace("against = \"bare epoll\"", "against = 7");
    assert!(fault(&number).starts_with("mine.toml:7:55: "), "{}", fault(&number));
}

#[test]
fn every_option_of_the_preset_is_set_against_another_and_the_yardsticks_against_none() {
    let options = |cores: usize| resolve("options", preset("options").unwrap(), &machine(cores)).unwrap();
    let large = options(3);
    let alone = large.contenders.iter().filter(|contender| contender.base.is_none());
    let alone: Vec<&str> = alone.map(|contender| contender.name.as_str()).collect();
    assert_eq!(alone, ["defaults", "defaults again", "bare io_uring", "bare epoll", "anello io_uring"]);
    assert!(large.scenario.scaling.iter().any(|note| note.contains("On loopback the kernel copies")));
    let small = options(2);
    let missing = |contender: &&Contender| !small.contenders.contains(contender);
    let missing: Vec<&str> =
        large.contenders.iter().filter(missing).map(|contender| contender.name.as_str()).collect();
    assert_eq!(missing, ["SQPOLL pinned", "anello SQPOLL pinned"], "and nobody has lost a base with them");
}

#[test]
fn cells_can_be_named_for_themselves_and_rates_make_slices_longer() {
    let text = MINIMAL.replace("message_bytes = [128]\nconnections = [1, 50]\n", "")
        + "[[cells]]\nconnections = 80\nmessage_bytes = 100\nrate_per_second = 20000\n\
           [[cells]]\nconnections = 7\nmessage_bytes = 1\nserver_cores = 5\n";
    let config = resolve("mine.toml", &text, &machine(2)).unwrap();
    assert_eq!(config.cells, [Cell { offered_per_second: Some(20_000), ..Cell::echo(100, 80) }]);
    assert_eq!(config.slice, Duration::from_millis(250));
    assert_eq!(config.scenario.scaling.len(), 2, "{:?}", config.scenario.scaling);
}

#[test]
fn faults_point_at_their_place_and_name_the_remedy() {
    let error = fault(&MINIMAL.replace("\"tokio\"", "\"tokyo\""));
    assert!(error.starts_with("mine.toml:6:29: no contender is called \"tokyo\": choose one of"), "{error}");
    assert!(error.contains("6 | contenders = [\"bare epoll\", \"tokyo\"]\n"), "{error}");
    assert!(error.ends_with(&format!("  | {}^", " ".repeat(28))), "{error}");
    let error = fault(&format!("server_share = 1.5\n{MINIMAL}"));
    assert!(error.starts_with("mine.toml:1:16: server_share must be from 0.1 to 1, not 1.5"), "{error}");
    let error = fault(&MINIMAL.replace("rounds = 3", "round = 3"));
    assert!(error.contains("8:1: unknown field `round`, expected one of"), "{error}");
    let error = fault(&MINIMAL.replace("[1, 50]", "[1, 0]"));
    assert!(error.starts_with("mine.toml:5:19: ") && error.contains("at least 1 connection"), "{error}");
    let error = fault(&MINIMAL.replace("\"64ms\"", "64"));
    assert!(error.starts_with("mine.toml:10:9: "), "{error}");
    let error = fault(&MINIMAL.replace("\"64ms\"", "\"64 m\""));
    assert!(error.contains("write \"64ms\""), "{error}");
    assert!(fault(&MINIMAL.replace("[1, 50]", "[50, 50]")).contains("is there twice"));
    assert!(fault(&MINIMAL.replace("passes = 2", "passes = 0")).contains("passes must be at least 1"));
    let error = fault(&MINIMAL.replace("reference = \"bare epoll\"", "reference = \"tokyo\""));
    assert!(error.contains("7:13: the reference \"tokyo\" is not among the contenders"), "{error}");
    let error = fault(&MINIMAL.replace("\"tokio\"]", "{ name = \"x\", comand = \"y\" }]"));
    assert!(error.contains("unknown field `comand`"), "{error}");
    assert!(fault(&MINIMAL.replace("\"tokio\"]", "7]")).contains("the name of a contender, or {"));
    assert!(fault(&MINIMAL.replace("connections = [1, 50]\n", "")).contains("[[cells]]"));
    assert!(fault("name = [").starts_with("mine.toml:1:"));
    assert!(fault(&MINIMAL.replace("name = \"mine\"", "name = \" \"")).starts_with("mine.toml:2:8: "));
    let error = fault(&MINIMAL.replace("passes = 2", "passes = 9223372036854775807"));
    assert!(error.starts_with("mine.toml:9:10: ") && error.contains("at most 100000"), "{error}");
    let per_core = "connections_per_core = [4611686018427387904]\nserver_cores = [1, 8]";
    let error = fault(&MINIMAL.replace("connections = [1, 50]", per_core));
    assert!(error.contains("at most 1073741824"), "{error}");
}

#[test]
fn faults_in_the_configuration_are_named() {
    let good = LabConfig::quick(PathBuf::from("anello"));
    let fault = |change: &dyn Fn(&mut LabConfig)| {
        let mut config = good.clone();
        change(&mut config);
        config.validate().unwrap_err()
    };
    assert!(fault(&|config| config.reference = "nginx".into()).contains("bare epoll"));
    assert!(fault(&|config| config.server_share = 0.0).contains("server_share"));
    assert!(fault(&|config| config.stolen_fraction_limit = f64::NAN).contains("stolen"));
    assert!(fault(&|config| config.rounds = 0).contains("rounds"));
    assert!(fault(&|config| config.passes = usize::MAX).contains("passes"));
    assert!(fault(&|config| (config.passes, config.rounds) = (90_000, 90_000)).contains("slices"));
    assert!(fault(&|config| config.slice = Duration::from_secs(4000)).contains("3600s"));
    assert!(fault(&|config| config.cells[0].connections = usize::MAX).contains("at most"));
    assert!(fault(&|config| config.cells = echo_cells(&[128], &[50, 0])).contains("at least 1"));
    assert!(fault(&|config| config.cells = echo_cells(&[0], &[50])).contains("message size"));
    assert!(fault(&|config| config.cells.clear()).contains("nothing to measure"));
    assert!(fault(&|config| config.cells[1] = config.cells[0]).contains("twice"));
    assert!(fault(&|config| config.cells[0].server_cores = 2).contains("not 2"));
    assert!(fault(&|config| config.cells[0].offered_per_second = Some(0)).contains("offered rate"));
    assert!(fault(&|config| config.contenders[0].name = "bare epoll".into()).contains("rename"));
    let nobody = fault(&|config| config.contenders[0].base = Some("nginx".into()));
    assert!(nobody.contains("against \"nginx\", which is not among the contenders"), "{nobody}");
}
