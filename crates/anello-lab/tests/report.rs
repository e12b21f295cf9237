//! The reports of simulated runs: everything is there, nothing gets out of its quotes, nothing needs the network.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anello_lab::analysis::analyse;
use anello_lab::compare::{compare, render_comparison};
use anello_lab::executable::Executable;
use anello_lab::measure::Measure;
use anello_lab::pairs::CleanSlices;
use anello_lab::peers::Kind;
use anello_lab::published::{Judgement, beside};
use anello_lab::raw::runs_of;
use anello_lab::result::{CheckRecord, ContenderRecord, ScenarioRecord, Verdict, Versus};
use anello_lab::simulation::{Fault, Noise, SimulatedServer, Simulation};
use anello_lab::{
    Cell, Contender, DiskOperation, Instructions, LabConfig, LabResult, Role, Workload, echo_cells,
    render_html, render_markdown, render_page, render_plots, render_table, run,
};

/// Name, role, cost of a request.
const FIELD: [(&str, Role, f64); 8] = [
    ("anello io_uring", Role::Anello, 5_500.0),
    ("anello epoll", Role::Anello, 6_100.0),
    ("bare io_uring", Role::Bare, 4_000.0),
    ("bare epoll", Role::Bare, 6_000.0),
    ("bare epoll again", Role::Bare, 6_000.0),
    ("tokio", Role::Peer, 6_600.0),
    ("go <net> & \"friends\"", Role::Peer, 9_000.0),
    ("fragile", Role::Peer, 7_000.0),
];

/// A run like frevib's with something of everything: a peer that cannot start, one that dies, a name full of signs.
fn sample() -> LabResult {
    static SAMPLE: LazyLock<LabResult> =
        LazyLock::new(|| simulate_in(echo_cells(&[128, 512], &[1, 50, 300]), Noise::USUAL));
    SAMPLE.clone()
}

fn simulate_in(cells: Vec<Cell>, noise: Noise) -> LabResult {
    let contender = |(name, role, _): &(&str, Role, f64)| Contender {
        role: *role,
        twin_of: name.ends_with("again").then(|| "bare epoll".to_owned()),
        against: (*name == "fragile").then(|| FIELD[6].0.to_owned()),
        ..Contender::new(name, Path::new("server"), &["--name", name, "--cores", "{cores}"])
    };
    let mut contenders: Vec<Contender> = FIELD.iter().map(contender).collect();
    contenders.push(Contender::new("absent", Path::new("absent"), &[]));
    let config = LabConfig {
        contenders,
        scenario: ScenarioRecord {
            name: "frevib".to_owned(),
            title: "A run <of> a test".to_owned(),
            ..Default::default()
        },
        cells,
        // With checks, who cannot start would not be timed at all.
        check: false,
        slice: Duration::from_millis(50),
        seed: 5,
        server_cores: vec![0],
        load_cores: vec![1],
        repeat_command: "anello lab run --with 'x=<y>'".to_owned(),
        instructions: Some(
            Instructions::from_json(
                r#"{"kernel": "6.12", "cells": [
                    {"server": "Tokio", "connections": 50, "bytes": 128, "requests": 9, "instructions_per_request": 12571.2},
                    {"server": "bare-epoll", "connections": 50, "bytes": 128, "requests": 9, "instructions_per_request": 12140}]}"#,
            )
            .unwrap(),
        ),
        ..LabConfig::quick(PathBuf::from("server"))
    };
    let mut servers: Vec<(&str, SimulatedServer)> =
        FIELD.iter().map(|(name, _, cost_ns)| (*name, SimulatedServer::costing(*cost_ns))).collect();
    servers[7].1.fault = Fault::DiesAbove(300);
    let why = "no </script><img src=x onerror=alert(1)> here".to_owned();
    servers.push(("absent", SimulatedServer::costing(1.0).with_fault(Fault::CannotStart(why))));
    let simulation = Simulation::new(5, noise, &servers);
    let stop = AtomicBool::new(false);
    run(&config, &mut simulation.load(), &mut simulation.machine(), &mut |_| {}, &stop).unwrap()
}

/// The names of elements that are never closed in HTML.
const VOID: [&str; 4] = ["meta", "input", "br", "!doctype"];

/// Walks through the tags of a page or drawing and says what is not in order: an element that is not closed, or closed
/// in another's place, or an attribute without quotes.
fn check_markup(text: &str) -> Result<usize, String> {
    let (mut open, mut elements) = (Vec::new(), 0);
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let tail = &rest[start + 1..];
        let end =
            tail.find('>').ok_or_else(|| format!("a tag has no end: {}", &tail[..tail.len().min(60)]))?;
        let tag = &tail[..end];
        rest = &tail[end + 1..];
        if tag.matches('"').count() % 2 == 1 {
            return Err(format!("quotes are open in <{tag}>"));
        }
        let name =
            tag.trim_start_matches('/').split(|c: char| c.is_whitespace() || c == '/').next().unwrap_or("");
        if tag.starts_with('/') {
            let last: Option<&str> = open.pop();
            if last != Some(name) {
                return Err(format!("</{name}> closes {last:?} after {elements} elements"));
            }
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            elements += 1;
            open.push(name);
            // Their content is not markup.
            if matches!(name, "script" | "style") {
                let close =
                    rest.find(&format!("</{name}>")).ok_or_else(|| format!("<{name}> is not closed"))?;
                rest = &rest[close..];
            }
        }
    }
    if open.is_empty() { Ok(elements) } else { Err(format!("not closed: {open:?}")) }
}

#[test]
fn instructions_stand_beside_the_cpu_of_their_cell() {
    let result = sample();
    let counted: Vec<(&str, f64)> = result
        .cells
        .iter()
        .filter(|cell| cell.cell == Cell::echo(128, 50))
        .flat_map(|cell| &cell.rows)
        .filter_map(|row| Some((row.contender.as_str(), row.instructions_per_request?)))
        .collect();
    assert_eq!(counted, [("bare epoll", 12_140.0), ("bare epoll again", 12_140.0), ("tokio", 12_571.2)]);
    let all = result.cells.iter().flat_map(|cell| &cell.rows);
    assert_eq!(all.filter(|row| row.instructions_per_request.is_some()).count(), 3);
    let table = render_table(&result);
    let line = "instructions per request, emulated, Linux 6.12: bare epoll 12.1k, bare epoll again 12.1k, tokio 12.6k";
    assert_eq!(table.matches("instructions per request").count(), 1);
    assert!(table.contains(line), "{table}");
    assert!(render_html(&result).contains("<td>12.6k</td>"));
}

#[test]
fn the_page_is_well_formed_and_needs_no_network() {
    let page = render_html(&sample());
    let elements = check_markup(&page).unwrap();
    assert!(elements > 500, "{elements} elements");
    assert!(!page.contains("<img"), "what a server said is escaped");
    for outside in ["src=\"", "@import", "href=\"http", "url(http", "<link", "fetch(", "XMLHttp"] {
        assert!(!page.contains(outside), "{outside}");
    }
    // The only address is the name of the format of drawings, which nobody fetches.
    let addresses = page.matches("http://").count() + page.matches("https://").count();
    assert_eq!(addresses, page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
}

#[test]
fn a_hash_gets_no_markup_into_the_page() {
    let mut result = sample();
    // None that a file may hold, but a program can put anything together.
    let executable = Executable { file: "<u>".to_owned(), sha256: "<img src=x>\"".to_owned() };
    result.contenders[0].executables = vec![executable];
    let page = render_html(&result);
    check_markup(&page).unwrap();
    assert!(!page.contains("<img") && !page.contains("<u>"));
    assert!(page.contains("&lt;u&gt; &lt;img src=x&gt;"));
}

#[test]
fn the_page_tells_which_build_each_contender_was() {
    let mut result = sample();
    let checksum = format!("sha256:{}", "c".repeat(64));
    let records = &mut result.contenders;
    records[0].commit = Some("a".repeat(12) + "+changes");
    records[0].built_with = Some("Rust (rustc 1.95.0, profile release, opt-level 3)".to_owned());
    records[2].commit = Some("b".repeat(40) + "-dirty");
    records[5].commit = Some("d".repeat(40));
    records[5].library_checksum = Some(checksum.clone());
    records[5].server_commit = Some("<e>".to_owned());
    let page = render_html(&result);
    check_markup(&page).unwrap();
    for line in [
        ">commit aaaaaaaaaaaa and changes</small>",
        ">Rust (rustc 1.95.0, profile release, opt-level 3)</small>",
        ">commit bbbbbbbbbbbb and changes</small>",
        ">commit dddddddddddd</small>",
        &format!("title=\"{checksum}\">checksum sha256:cccccccccccc</small>"),
        ">its server: commit &lt;e&gt;</small>",
    ] {
        assert_eq!(page.matches(line).count(), 1, "{line}");
    }
    // Of anello's own and the yardsticks it is said that nothing is known, of peers nothing.
    let own = |contender: &&ContenderRecord| contender.role != Role::Peer && contender.commit.is_none();
    let silent = result.contenders.iter().filter(own).count();
    assert_eq!((silent, page.matches("commit unknown").count()), (3, 3));
    let back = LabResult::from_json(&anello_lab::render_json(&result).unwrap()).unwrap();
    assert_eq!(back.contenders, result.contenders);
}

#[test]
fn a_result_of_before_these_fields_is_read() {
    let result = sample();
    let mut old: serde_json::Value =
        serde_json::from_str(&anello_lab::render_json(&result).unwrap()).unwrap();
    let without = |object: &mut serde_json::Value, fields: &[&str]| {
        for field in fields {
            object.as_object_mut().unwrap().remove(*field).expect(field);
        }
    };
    for contender in old["contenders"].as_array_mut().unwrap() {
        without(contender, &["commit", "library_checksum", "server_commit"]);
    }
    for environment in ["environment", "environment_after"] {
        let added = ["vulnerable", "mitigations_at_boot", "processes", "sysctls", "disk"];
        without(&mut old[environment], &added);
    }
    assert_eq!(LabResult::from_json(&old.to_string()).unwrap().contenders, result.contenders);
}

#[test]
fn the_page_says_how_connections_were_held() {
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 20) };
    let (held, alone) =
        ("all servers hold their connections open", "Idle connections are opened to a server");
    let busy = render_html(&sample());
    assert!(busy.contains(held) && !busy.contains(alone));
    let idle = render_html(&simulate_in(vec![idle], Noise::USUAL));
    assert!(idle.contains(alone) && !idle.contains(held));
}

#[test]
fn the_page_names_every_contender_and_every_failure() {
    let result = sample();
    let page = render_html(&result);
    let escape = |text: &str| {
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;")
            .replace('\'', "&#39;")
    };
    for contender in &result.contenders {
        let times = page.matches(&escape(&contender.name)).count();
        assert!(times > 5, "{} stands there {times} times", contender.name);
        assert!(page.contains(&escape(&contender.command)));
    }
    assert!(result.failures.len() >= 2);
    for failure in &result.failures {
        assert!(page.contains(&escape(&failure.what)), "{failure:?}");
        assert!(page.contains(&failure.consequence.to_string()), "{failure:?}");
    }
    for finding in &result.findings {
        let words = escape(&finding.text);
        let end: String = words.chars().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect();
        assert!(page.contains(&end), "{}", finding.text);
    }
    for cell in &result.plan.cells {
        assert!(page.contains(&cell.to_string()), "{cell}");
    }
    assert!(page.contains(&escape(&result.plan.repeat_command)));
    assert!(page.contains("A run &lt;of&gt; a test"));
}

#[test]
fn the_page_has_colours_for_light_and_dark_and_a_switch() {
    let page = render_html(&sample());
    assert!(page.contains("@media (prefers-color-scheme:dark){:root{--bg:"));
    assert!(page.contains(":root[data-theme=dark]") && page.contains(":root[data-theme=light]"));
    assert!(
        page.contains("id=\"theme\"") && page.contains("width=device-width") && page.contains("@media print")
    );
    // Every variable that is used is defined.
    for used in page.split("var(--").skip(1) {
        let name = used.split([')', ',']).next().unwrap();
        assert!(name == "swatch" || page.contains(&format!("--{name}:")), "--{name} has no value");
    }
}

#[test]
fn the_raw_data_of_every_run_is_in_the_page() {
    let (one, mut other) = (sample(), sample());
    other.plan.scenario.name = "other".to_owned();
    let page = render_page(&[one.clone(), other.clone()]);
    check_markup(&page).unwrap();
    // A page without its end may lack a run, wherever the cut is.
    let last = page.rfind("<script type=\"application/gzip\"").unwrap();
    for cut in [page.find("id=\"raw1\"").unwrap() + 100, last, last - 100, page.rfind("</html>").unwrap()] {
        let why = runs_of(&page[..cut]).unwrap_err();
        assert!(why.contains("raw data that are cut short"), "{cut} of {}: {why}", page.len());
    }
    assert_eq!(runs_of(&page).unwrap(), [one, other]);
    assert!(page.contains("href=\"#run1\"") && page.contains("2 runs on this page"));
    let ids: Vec<&str> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let unique: std::collections::HashSet<&&str> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
}

#[test]
fn plots_stand_alone() {
    let plots = render_plots(&sample());
    let names: std::collections::HashSet<&String> = plots.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), plots.len());
    for wanted in [
        "echo-128-bytes-requests-s.svg",
        "echo-512-bytes-server-cpu-per-request.svg",
        "echo-128-bytes-latency-50.svg",
    ] {
        assert!(names.iter().any(|name| *name == wanted), "{wanted} is not among {names:?}");
    }
    for (name, svg) in &plots {
        check_markup(svg).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(svg.starts_with("<svg ") && svg.contains("xmlns=") && !svg.contains("var("), "{name}");
        assert!(svg.contains("anello io_uring"), "{name}");
    }
}

#[test]
fn latency_and_cpu_are_drawn_against_the_offered_rate() {
    let rated = [20_000, 50_000].map(|rate| Cell { offered_per_second: Some(rate), ..Cell::echo(128, 80) });
    let result = simulate_in(rated.to_vec(), Noise::USUAL);
    let (plots, page) = (render_plots(&result), render_html(&result));
    let names: Vec<&String> = plots.iter().map(|(name, _)| name).collect();
    for (name, title) in [
        ("median-latency", "Median latency, µs · less is better"),
        ("p99-latency", "p99 latency, µs · less is better"),
        ("server-cpu-per-request", "Server CPU per request, µs · less is better"),
        ("relative-server-cpu-per-request", "Server CPU per request, × bare epoll · less is better"),
    ] {
        let file = format!("echo-128-bytes-80-connections-{name}.svg");
        let plot = plots.iter().find(|(name, _)| *name == file);
        let (_, svg) = plot.unwrap_or_else(|| panic!("{file} is not among {names:?}"));
        check_markup(svg).unwrap();
        for wanted in [title, ">requests/s offered<", ">20.0k<", ">50.0k<"] {
            assert!(svg.contains(wanted), "{wanted} is not in {svg}");
        }
        // A point for everybody at each of the rates.
        for (contender, cell) in
            ["anello io_uring", "tokio"].iter().flat_map(|name| rated.map(|cell| (name, cell)))
        {
            let point = format!("<title>{contender}, {cell}: ");
            assert_eq!(svg.matches(&point).count(), 1, "{point} in {svg}");
        }
        assert!(page.contains(&format!("aria-label=\"{title}\"")), "{title} is not in the page");
    }
    assert!(names.iter().all(|name| !name.contains("requests-s")), "the rate is given: {names:?}");
}

#[test]
fn who_names_a_base_stands_beside_it_in_a_table_of_its_own() {
    let mut result = sample();
    let title = "Each option against the server that differs in nothing else";
    let compared: Vec<Cell> = result.base_versus.iter().map(|versus| versus.cell).collect();
    assert_eq!(compared, echo_cells(&[128, 512], &[1, 50]), "fragile dies at 300 connections");
    let versus = result.base_versus.iter().find(|versus| versus.cell == Cell::echo(128, 50)).unwrap();
    // 7,000 against 9,000 ns.
    let ratio = versus.cpu_ratio.unwrap();
    assert!((0.7..0.85).contains(&ratio.estimate) && versus.cpu_verdict == Verdict::Less, "{versus:?}");
    let [estimate, low, high] = [ratio.estimate, ratio.low, ratio.high].map(|value| format!("{value:.2}"));
    let page = render_html(&result);
    check_markup(&page).unwrap();
    assert_eq!(page.matches(&format!("<h3>{title}</h3>")).count(), 2, "one in each group");
    let table = page.split(title).nth(1).unwrap().split("<details>").next().unwrap();
    let row = "fragile<br><small>× go &lt;net&gt; &amp; &quot;friends&quot;</small></th>";
    assert_eq!(
        (table.matches("<table").count(), table.matches(row).count()),
        (2, 2),
        "CPU and rate: {table}"
    );
    let cell = format!(
        "<td class=\"good\">▼ {estimate}<br><small>{low}–{high}</small></td><td class=\"none\">–</td>"
    );
    assert!(table.contains(&cell), "{cell} is not in {table}");
    let text = render_table(&result);
    let block = text.split(title).nth(1).unwrap_or_else(|| panic!("{text}"));
    assert!(
        block.starts_with("\n\nEcho, 128 bytes: server CPU per request (less is better)\nconnections "),
        "{block}"
    );
    let line = block.lines().find(|line| line.starts_with("fragile ")).unwrap();
    let wanted = format!(" ▼ {estimate} {low}–{high} ");
    assert!(line.contains(" × go <net> ") && line.contains(&wanted) && line.ends_with(" –"), "{line}");
    let tables = render_markdown(std::slice::from_ref(&result));
    let block = tables.split(&format!("\n### {title}\n")).nth(1).unwrap_or_else(|| panic!("{tables}"));
    let wanted = format!("| ▼ {estimate} ({low}–{high}) |  |\n");
    let line = block.lines().find(|line| line.starts_with("| fragile × go <net> & \"friends\" | ")).unwrap();
    assert!(format!("{line}\n").ends_with(&wanted), "{line}");
    result.contenders.iter_mut().for_each(|record| record.against = None);
    analyse(&mut result);
    for text in [render_html(&result), render_table(&result), render_markdown(&[result])] {
        assert!(!text.contains(title), "nothing where nobody names one: {text}");
    }
}

#[test]
fn published_ratios_stand_beside_those_of_the_run() {
    let result = sample();
    let all = beside(&result);
    assert_eq!(all[0].source.key, "frevib", "the scenario's own source comes first");
    let comparison = all[0]
        .comparisons
        .iter()
        .find(|row| row.published_cell.connections == 300 && row.published_cell.message_bytes == 128)
        .unwrap();
    assert!((comparison.published_ratio.unwrap() - 216_637.0 / 145_517.0).abs() < 1e-9);
    let bare = comparison.ours.iter().find(|ours| ours.contender == "bare io_uring").unwrap();
    // 6051.2 against 4051.2 ns at most; what is measured is that of the simulation with its batching and limits.
    let ratio = bare.ratio.unwrap();
    assert!(ratio.low > 1.2 && ratio.high < 1.7, "{ratio:?}");
    assert_eq!(bare.judgement, Judgement::Holds);
    let anello = comparison.ours.iter().find(|ours| ours.contender == "anello io_uring").unwrap();
    assert_eq!((anello.to.as_str(), anello.judgement), ("anello epoll", Judgement::DoesNotHold));
    let claim =
        all[0].claims.iter().find(|found| found.contender == "bare io_uring" && found.holds == 2).unwrap();
    assert!(
        claim.sentence.starts_with("holds here: bare io_uring against bare epoll 1."),
        "{}",
        claim.sentence
    );
    assert!(claim.sentence.contains("published 1.43 to 1.49"), "{}", claim.sentence);
    let page = render_html(&result);
    assert!(
        page.contains("other machine") && page.contains("“At one connection io_uring and epoll are level”")
    );
}

#[test]
fn a_published_cell_is_found_as_the_share_of_one_core_of_load() {
    let mut result = sample();
    let rated = |connections: usize, rate: Option<u64>| Cell {
        offered_per_second: rate,
        ..Cell::echo(1024, connections)
    };
    // The slices stay as they are; only the names of the cells are others.
    let cells =
        [rated(80, None), rated(320, None), rated(80, Some(12_000)), rated(80, Some(4_100)), rated(5, None)];
    for (index, cell) in cells.into_iter().enumerate() {
        result.plan.cells[index] = cell;
        result.cells[index].cell = cell;
    }
    let all = beside(&result);
    let of = |key: &str| {
        let found = all.iter().find(|beside| beside.source.key == key).unwrap();
        let place = |row: &anello_lab::published::Comparison| {
            (row.published_cell.connections, row.published_cell.offered_per_second, row.cell.connections)
        };
        let cpu_or_rate = found.comparisons.iter().filter(|row| row.pair == 0 && row.measure != Measure::P50);
        cpu_or_rate.map(place).collect::<Vec<_>>()
    };
    assert_eq!(of("monoio-peak"), [(320, None, 320)], "the whole before a share of it");
    assert_eq!(of("monoio-fixed"), [(320, Some(16_000), 80), (320, Some(48_000), 80)]);
}

#[test]
fn cells_won_and_lost_against_each_peer_are_counted() {
    let mut result = sample();
    let slices = CleanSlices::of(&result);
    let ratio = slices.ratio(1, 0, 5, Measure::Cpu);
    assert!(ratio.unwrap().estimate < 0.95);
    let versus = |cell: usize, cpu_verdict: Verdict| Versus {
        contender: "anello io_uring".to_owned(),
        peer: "tokio".to_owned(),
        cell: result.plan.cells[cell],
        mixed_phase_rounds: 0,
        rate_ratio: None,
        cpu_ratio: ratio,
        p99_ratio: None,
        memory_ratio: None,
        rate_verdict: Verdict::NotComparable,
        cpu_verdict,
        p99_verdict: Verdict::NotComparable,
        memory_verdict: Verdict::NotComparable,
    };
    let versus = vec![
        versus(0, Verdict::Less),
        versus(1, Verdict::Less),
        versus(2, Verdict::NoDifference),
        versus(3, Verdict::More),
    ];
    result.versus = versus;
    let page = render_html(&result);
    check_markup(&page).unwrap();
    assert!(page.contains("title=\"2 won, 1 level, 1 lost\""));
    let tables = render_markdown(&[result]);
    assert!(tables.contains("| tokio | 2 / 1 / 1 |\n"), "{tables}");
    assert!(tables.contains("| tokio | **▲ 0.") && tables.contains("| tokio | ▼ 0."), "{tables}");
}

#[test]
fn runtimes_that_do_io_in_another_way_have_a_table_of_their_own() {
    let mut result = sample();
    assert!(!render_html(&result).contains("async runtime"), "nothing where there are none");
    for (record, driver) in [(0, "io_uring"), (1, "epoll"), (5, "epoll"), (6, "epoll"), (7, "epoll")] {
        result.contenders[record].driver = Some(driver.to_owned());
    }
    result.contenders[5].kind = Some(Kind::Runtime);
    analyse(&mut result);
    assert_eq!(result.runtime_versus.len(), 6, "anello io_uring against tokio in each cell");
    let page = render_html(&result);
    check_markup(&page).unwrap();
    let summary =
        "<summary>anello as a multiple of each async runtime that does I/O in another way</summary>";
    assert_eq!(page.matches(summary).count(), 2, "one in each group");
    let table = page.split(summary).nth(1).unwrap().split("</details>").next().unwrap();
    assert!(table.contains("runtime on another kind of driver"), "{table}");
    assert_eq!(table.matches("anello io_uring: ").count(), 2, "CPU and rate: {table}");
    assert!(table.contains("tokio") && !table.contains("anello epoll") && !table.contains("fragile"));
    let versus = result.runtime_versus.iter().find(|versus| versus.cell == Cell::echo(128, 50)).unwrap();
    let ratio = format!("{:.2}", versus.cpu_ratio.unwrap().estimate);
    assert!(table.contains(&ratio), "{ratio} is not in {table}");
}

#[test]
fn tables_hold_every_peer_for_both_drivers() {
    let mut result = sample();
    for (record, driver) in [(0, "io_uring"), (1, "epoll"), (5, "epoll"), (6, "epoll"), (7, "epoll")] {
        result.contenders[record].driver = Some(driver.to_owned());
    }
    result.contenders[5].kind = Some(Kind::Runtime);
    result.contenders[7].kind = Some(Kind::Loop);
    analyse(&mut result);
    let page = render_html(&result);
    check_markup(&page).unwrap();
    let opening = page.split("<h2>anello against its peers</h2>").nth(1).unwrap();
    let opening = opening.split("</table>").next().unwrap();
    for peer in ["tokio", "go &lt;net&gt; &amp; &quot;friends&quot;", "fragile"] {
        assert_eq!(opening.matches(&format!("{peer}</th>")).count(), 1, "{peer}, the same way: {opening}");
        let other_way = format!("{peer} <small>epoll</small></th>");
        assert_eq!(opening.matches(&other_way).count(), 1, "{peer}, another way: {opening}");
    }
    let summary = "<summary>anello as a multiple of every other peer that does I/O in another way</summary>";
    assert_eq!(page.matches(summary).count(), 2, "one in each group");
    let table = page.split(summary).nth(1).unwrap().split("</details>").next().unwrap();
    assert!(table.contains("fragile") && table.contains("go &lt;net&gt;"), "{table}");
    assert!(!table.contains("tokio") && !table.contains("anello epoll"), "{table}");
    let tables = render_markdown(&[result]);
    let (of_epoll, of_uring) = tables.split_once("\n### anello io_uring, cells won").unwrap();
    for (part, lines) in
        [(of_epoll, ["| tokio |", "| fragile |"]), (of_uring, ["| tokio (epoll) |", "| fragile (epoll) |"])]
    {
        // A line in the summary, and one for each measure of both groups.
        assert!(lines.iter().all(|line| part.matches(line).count() == 1 + 2 * 2), "{lines:?} in {part}");
    }
}

#[test]
fn low_deciles_stand_behind_the_ratios_of_cpu_time() {
    let result = sample();
    let page = render_html(&result);
    let rows = result.cells.iter().flat_map(|cell| &cell.rows);
    let ratios: Vec<_> =
        rows.filter(|row| row.cpu_ratio.is_some()).filter_map(|row| row.cpu_low_ratio).collect();
    assert!(ratios.len() > result.cells.len());
    assert_eq!(page.matches(" title=\"low deciles: ").count(), ratios.len(), "CPU alone has them");
    for ratio in ratios {
        let shown = format!("{:.2} ({:.2}–{:.2})", ratio.estimate, ratio.low, ratio.high);
        assert!(page.contains(&format!(" title=\"low deciles: {shown}\">")), "{shown}");
        assert!(page.contains(&format!(" <small>× {shown}</small></td>")), "{shown}");
    }
    let idle = simulate_in(vec![Cell { workload: Workload::Idle, ..Cell::echo(1, 20) }], Noise::USUAL);
    assert!(!render_html(&idle).contains("low deciles"));
}

#[test]
fn peaks_of_a_sweep_stand_in_page_and_table() {
    let (page, table) = (render_html(&sample()), render_table(&sample()));
    assert!(!page.contains("<h2>Peak</h2>") && !table.contains("Peak of"), "three cells are no sweep");
    let result = simulate_in(echo_cells(&[100], &[1, 50, 150, 300]), Noise::USUAL);
    let page = render_html(&result);
    check_markup(&page).unwrap();
    let peaks = page.split("<h2>Peak</h2>").nth(1).unwrap().split("</table>").next().unwrap();
    assert!(peaks.contains("<th scope=\"col\">100 bytes</th>"), "{peaks}");
    assert!(peaks.contains("bare epoll</th>") && !peaks.contains("bare epoll again"), "{peaks}");
    assert!(
        peaks.contains("<i class=\"other\">206k <small>at 520</small></i>"),
        "published of tokio: {peaks}"
    );
    assert_eq!(peaks.matches("class=\"other\"").count(), 1, "and of nobody else here: {peaks}");
    assert!(peaks.contains("absent</th><td>–</td>"), "{peaks}");
    let table = render_table(&result);
    let peaks = table.split("Peak of requests/s").nth(1).unwrap_or_else(|| panic!("{table}"));
    let line = peaks.lines().find(|line| line.starts_with("tokio ")).unwrap();
    assert!([" at 50", " at 150", " at 300 →"].iter().any(|end| line.ends_with(end)), "{line}");
    assert!(table.lines().all(|line| line.chars().count() <= 108), "{table}");
}

#[test]
fn checks_are_shown_with_what_was_done_wrong() {
    let mut result = sample();
    let check = |contender: &str, passed: bool, details: &[&str]| CheckRecord {
        contender: contender.to_owned(),
        what: "stalled reader".to_owned(),
        passed,
        details: details.iter().map(|&line| line.to_owned()).collect(),
        elapsed_ns: 1,
    };
    result.checks =
        vec![check("tokio", true, &[]), check("fragile", false, &["lost 4096 bytes <at the end>"])];
    let page = render_html(&result);
    check_markup(&page).unwrap();
    assert!(
        page.contains("<th scope=\"col\">stalled reader</th>")
            && page.contains("lost 4096 bytes &lt;at the end&gt;")
    );
}

#[test]
fn the_table_shows_a_matrix_and_bars_within_its_width() {
    let table = render_table(&sample());
    assert!(
        table.contains("Echo, 128 bytes: server CPU per request, × bare epoll (less is better)"),
        "{table}"
    );
    assert!(table.contains("Echo, 512 bytes: Requests/s (more is better)"), "{table}");
    assert!(table.contains("█") && table.contains("skipped") && table.contains("failed"), "{table}");
    for line in table.lines() {
        assert!(line.chars().count() <= 108, "{} columns: {line}", line.chars().count());
        assert_eq!(line, line.trim_end());
    }
}

#[test]
fn a_run_that_measured_nothing_still_makes_reports() {
    let mut result = sample();
    result.slices.clear();
    result.findings.clear();
    for row in result.cells.iter_mut().flat_map(|cell| &mut cell.rows) {
        (row.figures, row.cpu_ratio, row.rate_ratio) = (None, None, None);
        row.latency_curve.clear();
    }
    check_markup(&render_html(&result)).unwrap();
    assert!(render_plots(&result).is_empty());
    assert!(render_table(&result).contains("failures"));
    result.cells.clear();
    check_markup(&render_html(&result)).unwrap();
    assert!(render_table(&result).lines().all(|line| line.chars().count() <= 108));
    check_markup(&render_page(&[])).unwrap();
}

/// A result that was read is whole; one that a program has put together may be anything.
#[test]
fn a_result_put_together_by_hand_still_makes_reports() {
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
    let idle = simulate_in(vec![idle], Noise::USUAL);
    type Change = fn(&mut LabResult);
    let changes: [Change; 9] = [
        |result| result.contenders.clear(),
        |result| drop(result.contenders.pop()),
        |result| result.contenders.extend(result.contenders.clone()),
        |result| result.cells.clear(),
        |result| result.plan.cells.clear(),
        |result| result.plan.cells.truncate(1),
        |result| result.cells.iter_mut().for_each(|cell| cell.rows.clear()),
        |result| result.plan.reference.clear(),
        |result| (result.plan.passes, result.plan.rounds) = (0, 0),
    ];
    for result in [sample(), idle] {
        for (index, change) in changes.into_iter().enumerate() {
            let mut odd = result.clone();
            change(&mut odd);
            check_markup(&render_html(&odd)).unwrap_or_else(|why| panic!("change {index}: {why}"));
            for (name, svg) in render_plots(&odd) {
                check_markup(&svg).unwrap_or_else(|why| panic!("change {index}, {name}: {why}"));
            }
            assert!(render_table(&odd).lines().all(|line| line.chars().count() <= 108), "change {index}");
            for (before, after) in [(&odd, &result), (&result, &odd)] {
                assert!(!render_comparison(&compare(before, after, 0.05)).is_empty(), "change {index}");
            }
        }
    }
}

#[test]
fn disks_are_reported_in_operations_of_workers() {
    let workload = Workload::Disk { operation: DiskOperation::RandomRead, direct: true, block_bytes: 4096 };
    let depths = [1, 16].map(|depth| Cell { workload, ..Cell::echo(1, depth) });
    let result = simulate_in(depths.to_vec(), Noise { slow_factor: 1.6, ..Noise::USUAL });
    let table = render_table(&result);
    for wanted in [
        "4096 bytes: CPU per operation, × bare epoll (less is better)",
        "4096 bytes: operations/s, × bare epoll (more is better)",
        "4096 bytes: Operations/s (more is better)",
        "(equal workers)",
        "queue depth 1 ",
        "queue depth 16",
        "CPU µs/op",
    ] {
        assert!(table.contains(wanted), "{wanted} is not in {table}");
    }
    let page = render_html(&result);
    let page = page.split("id=\"raw0\">").next().unwrap();
    assert!(page.contains("CPU µs/operation") && page.contains("anello io_uring: CPU per operation"));
    let comparison = render_comparison(&compare(&result, &result, 0.05));
    for (name, text) in [("table", table.as_str()), ("page", page), ("comparison", comparison.as_str())] {
        let found: Vec<&str> = text.lines().filter(|line| line.contains("request")).collect();
        assert!(found.is_empty(), "the {name} speaks of requests: {found:#?}");
    }
    let plots = render_plots(&result);
    assert!(plots.iter().any(|(name, _)| name.ends_with("-cpu-per-operation.svg")));
    assert!(plots.iter().all(|(name, svg)| !name.contains("request") && !svg.contains("request")));
}

#[test]
fn idle_connections_are_reported_by_their_memory() {
    let cell = Cell { workload: Workload::Idle, ..Cell::echo(1, 200) };
    let result = simulate_in(vec![cell], Noise::USUAL);
    let table = render_table(&result);
    let block = table.split("\n200 idle connections ").nth(1).unwrap_or_else(|| panic!("{table}"));
    let (heading, block) = block.split_once('\n').unwrap();
    assert!(
        heading.trim_start().starts_with("resolves ") && heading.ends_with("% of the memory"),
        "{heading}"
    );
    let line = |name: &str| block.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("server").contains("memory/connection  memory"), "{block}");
    assert!(line("anello epoll").contains(" KiB ±") && line("anello epoll").contains("–"), "{block}");
    assert!(line("absent").contains("skipped: "), "{block}");
    assert!(!block.contains("not measured") && !block.contains("s/s"), "{block}");
    let page = render_html(&result);
    check_markup(&page).unwrap();
    let figures = page.split("<summary>Every figure</summary>").nth(1).unwrap();
    let figures = figures.split("</details>").next().unwrap();
    assert!(figures.contains("<th scope=\"col\">memory per connection</th>"), "{figures}");
    assert!(figures.contains(" KiB <small>±") && figures.contains("colspan=\"3\">Skipped: "), "{figures}");
    assert!(!figures.contains("Not measured") && !figures.contains("requests/s<"), "{figures}");
}

#[test]
fn the_resolution_of_a_cell_is_that_of_its_figures() {
    let rated = Cell { offered_per_second: Some(100_000), ..Cell::echo(128, 80) };
    let table = render_table(&simulate_in(vec![rated, Cell::echo(128, 80)], Noise::USUAL));
    let told: Vec<&str> = table.lines().filter(|line| line.contains("resolves ")).collect();
    let [of_rated, of_loop] = told[..] else { panic!("{table}") };
    for (line, wanted, other) in [
        (of_rated, ["% of the CPU", "% of the p50", "% of the p99"].as_slice(), "of the rate"),
        (of_loop, ["% of the rate", "% of the CPU"].as_slice(), "of the p"),
    ] {
        assert!(wanted.iter().all(|wanted| line.contains(wanted)) && !line.contains(other), "{line}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 108), "{table}");
}

#[test]
fn one_connection_is_one_at_the_head_of_bars() {
    let table = render_table(&sample());
    assert!(table.contains(" 1 connection ") && table.contains("50 connections"), "{table}");
    assert!(!table.contains("1 connections"), "{table}");
    let idle = [1, 1000].map(|connections| Cell { workload: Workload::Idle, ..Cell::echo(1, connections) });
    let table = render_table(&simulate_in(idle.to_vec(), Noise::USUAL));
    assert!(table.contains(" 1 idle connection ") && table.contains("1000 idle connections"), "{table}");
    assert!(!table.contains("1 idle connections"), "{table}");
}
