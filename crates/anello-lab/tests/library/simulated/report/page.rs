//! Tests for the HTML page: it is complete and self-contained, and includes every contender, every failure and the raw
//! data.

use anello_lab::executable::Executable;
use anello_lab::raw::runs_of;
use anello_lab::result::{CheckRecord, ContenderRecord};
use anello_lab::{Cell, LabResult, Role, Workload, findings, render_html, render_page};

use super::{check_markup, sample, simulate_in};
use crate::simulated::simulation::Noise;

#[test]
fn page_is_well_formed_and_self_contained() {
    let page = render_html(&sample());
    let elements = check_markup(&page).unwrap();
    assert!(elements > 500, "{elements} elements");
    assert!(!page.contains("<img"), "output of servers is escaped");
    for outside in ["src=\"", "@import", "href=\"http", "url(http", "<link", "fetch(", "XMLHttp"] {
        assert!(!page.contains(outside), "{outside}");
    }
    // The only URL is in the comment at the start of the vendored script.
    assert_eq!((page.matches("http://").count(), page.matches("https://").count()), (0, 1));
    assert!(page.contains("/*! https://github.com/leeoniya/uPlot (v1.6.32) */"));
}

#[test]
fn page_escapes_executable_hashes() {
    let mut result = sample();
    // A parsed result cannot contain such a hash, but a result constructed by a program can.
    let executable = Executable { file: "<u>".to_owned(), sha256: "<img src=x>\"".to_owned() };
    result.contenders[0].executables = vec![executable];
    let page = render_html(&result);
    check_markup(&page).unwrap();
    assert!(!page.contains("<img") && !page.contains("<u>"));
    assert!(page.contains("&lt;u&gt; &lt;img src=x&gt;"));
}

#[test]
fn page_shows_build_of_each_contender() {
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
        ">commit aaaaaaaaaaaa and changes\nRust (rustc 1.95.0, profile release, opt-level 3)</small>",
        ">commit bbbbbbbbbbbb and changes</small>",
        ">commit dddddddddddd\nchecksum sha256:cccccccccccc\nits server: commit &lt;e&gt;</small>",
        &format!("title=\"{}\n{checksum}\n&lt;e&gt;\"", "d".repeat(40)),
    ] {
        assert_eq!(page.matches(line).count(), 1, "{line}");
    }
    // An unknown commit is shown for anello contenders and baselines, but not for peers.
    let own = |contender: &&ContenderRecord| contender.role != Role::Peer && contender.commit.is_none();
    let unknown = result.contenders.iter().filter(own).count();
    assert_eq!((unknown, page.matches("commit unknown").count()), (3, 3));
    let back = LabResult::from_json(&anello_lab::render_json(&result).unwrap()).unwrap();
    assert_eq!(back.contenders, result.contenders);
}

#[test]
fn page_shows_connection_use() {
    let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 20) };
    let (held, alone) =
        ("all servers hold their connections open", "Idle connections are opened to a server");
    let busy = render_html(&sample());
    assert!(busy.contains(held) && !busy.contains(alone));
    let idle = render_html(&simulate_in(vec![idle], Noise::USUAL));
    assert!(idle.contains(alone) && !idle.contains(held));
}

#[test]
fn page_lists_every_contender_and_failure() {
    let result = sample();
    let page = render_html(&result);
    let escape = |text: &str| {
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
    };
    for contender in &result.contenders {
        let times = page.matches(&escape(&contender.name)).count();
        assert!(times > 5, "{} occurs only {times} times", contender.name);
        assert!(page.contains(&escape(&contender.command)));
    }
    assert!(result.failures.len() >= 2);
    for failure in &result.failures {
        assert!(page.contains(&escape(&failure.what)), "{failure:?}");
        assert!(page.contains(&failure.consequence.to_string()), "{failure:?}");
    }
    assert!(page.contains(&format!("<p class=\"headline\">{}</p>", escape(&findings::conclusion(&result)))));
    for fact in findings::facts(&result) {
        assert!(page.contains(&escape(&fact.subject)) && page.contains(&escape(&fact.text)), "{fact:?}");
    }
    for cell in &result.plan.cells {
        assert!(page.contains(&cell.to_string()), "{cell}");
    }
    assert!(page.contains(&escape(&result.plan.repeat_command)));
    assert!(page.contains("A run &lt;of&gt; a test"));
}

#[test]
fn page_supports_light_and_dark_colours() {
    let page = render_html(&sample());
    assert!(page.contains("color-scheme: light dark;") && page.contains("--bg: light-dark(#"));
    assert!(page.contains(":root[data-theme=dark]") && page.contains(":root[data-theme=light]"));
    assert!(
        page.contains(" id=\"theme\"")
            && page.contains("width=device-width")
            && page.contains("@media print")
    );
    // Every CSS variable in use is defined.
    for used in page.split("var(--").skip(1) {
        // The script appends the end of some names.
        let name = used.split([')', ',', '$']).next().unwrap();
        assert!(page.contains(&format!("--{name}")), "--{name} has no value");
    }
}

#[test]
fn text_and_lines_have_sufficient_contrast() {
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }
    let contrast = |one: &str, other: &str| {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    };
    // Include the reference and, for each role, as many contenders as there are colours.
    let mut result = sample();
    let template = result.contenders[0].clone();
    let roles = [(Role::Baseline, 5), (Role::Anello, 4), (Role::Peer, 16)];
    let roles = roles.into_iter().flat_map(|(role, count)| vec![role; count]).enumerate();
    let record =
        |(index, role): (usize, Role)| ContenderRecord { name: index.to_string(), role, ..template.clone() };
    result.contenders = roles.map(record).collect();
    result.plan.reference = "0".to_owned();
    let page = render_html(&result);
    // Returns the light and dark values of a variable in the page.
    let colours = |name: &str| {
        let value = page.split(&format!("--{name}:")).nth(1).unwrap().trim_start();
        let value = value.strip_prefix("light-dark(").unwrap().split(')').next().unwrap();
        value.split_once(',').map(|(light, dark)| (light, dark.trim_start())).unwrap()
    };
    let both = |one: &str, other: &str| {
        let (one, other) = (colours(one), colours(other));
        contrast(one.0, other.0).min(contrast(one.1, other.1))
    };
    for (text, background) in [
        ("fg", "bg"),
        ("muted", "card"),
        ("muted", "bg"),
        ("good", "good-bg"),
        ("bad", "bad-bg"),
        ("link", "bg"),
    ] {
        let found = both(text, background);
        assert!(found >= 4.5, "{text} on {background}: {found:.2}");
    }
    let lines: Vec<String> = (0..result.contenders.len()).map(|index| format!("c{index}")).collect();
    let unique: std::collections::HashSet<_> = lines.iter().map(|line| colours(line)).collect();
    assert_eq!(unique.len(), lines.len());
    for line in &lines {
        let found = both(line, "card");
        assert!(found >= 2.2, "{:?}: {found:.2}", colours(line));
    }
}

#[test]
fn page_contains_raw_data_of_every_run() {
    let (one, mut other) = (sample(), sample());
    other.plan.scenario.name = "other".to_owned();
    let page = render_page(&[one.clone(), other.clone()]);
    check_markup(&page).unwrap();
    // A page that is truncated at any position is rejected, because a run may be missing.
    let last = page.rfind("<script type=\"application/gzip\"").unwrap();
    for cut in [page.find("id=\"raw1\"").unwrap() + 100, last, last - 100, page.rfind("</html>").unwrap()] {
        let why = runs_of(&page[..cut]).unwrap_err();
        assert!(why.contains("raw data are truncated"), "{cut} of {}: {why}", page.len());
    }
    assert_eq!(runs_of(&page).unwrap(), [one, other]);
    assert!(page.contains("href=\"#run1\"") && page.contains("2 runs on this page"));
    let ids: Vec<&str> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let unique: std::collections::HashSet<&&str> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
}

#[test]
fn failed_checks_are_shown_with_details() {
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
