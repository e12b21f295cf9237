//! Tests for the tables that compare contenders with bases, peers and published results.

use anello_lab::analysis::analyse;
use anello_lab::measure::Measure;
use anello_lab::pairs::CleanSlices;
use anello_lab::peers::Kind;
use anello_lab::published::{Judgement, compare_with_published};
use anello_lab::result::{Comparison, PairComparison, Verdict};
use anello_lab::{Cell, LabResult, Workload, echo_cells, render_html, render_markdown, render_table};

use super::{check_markup, sample};

#[test]
fn base_comparisons_have_separate_table() {
    let mut result = sample();
    let title = "× the base, which differs in one option";
    let compared: Vec<Cell> = result.base_comparisons.iter().map(|versus| versus.cell).collect();
    assert_eq!(compared, echo_cells(&[128, 512], &[1, 50]), "fragile dies at 300 connections");
    let versus = result.base_comparisons.iter().find(|versus| versus.cell == Cell::echo(128, 50)).unwrap();
    // "fragile" costs 7,000 ns and its base costs 9,000 ns.
    let ratio = versus.comparison.cpu_ratio.unwrap();
    assert!(
        (0.7..0.85).contains(&ratio.estimate) && versus.comparison.cpu_verdict == Verdict::Less,
        "{versus:?}"
    );
    let [estimate, low, high] = [ratio.estimate, ratio.low, ratio.high].map(|value| format!("{value:.2}"));
    let page = render_html(&result);
    check_markup(&page).unwrap();
    assert_eq!(page.matches(&format!("{title} (")).count(), 4, "CPU and rate in each of two groups");
    let table = page.split(title).nth(1).unwrap().split("</table>").next().unwrap();
    let row = "fragile <small>× go &lt;net&gt; &amp; &quot;friends&quot;</small></th>";
    assert_eq!(table.matches(row).count(), 1, "{table}");
    let cell = format!("<td class=\"good\">▼ {estimate} <small>{low}–{high}</small>");
    assert!(table.contains(&cell), "{cell} is not in {table}");
    assert!(table.contains("<td class=\"muted\">–</td>"), "{table}");
    let text = render_table(&result);
    let block = text
        .split("\nEcho, 128 bytes: server CPU per request, × the base,")
        .nth(1)
        .unwrap_or_else(|| panic!("{text}"));
    assert!(block.starts_with(" which differs in one option (less is better)\nconnections "), "{block}");
    let line = block.lines().find(|line| line.starts_with("fragile ")).unwrap();
    let expected = format!(" ▼ {estimate} {low}–{high} ");
    assert!(line.contains(" × go <net> ") && line.contains(&expected) && line.ends_with(" –"), "{line}");
    let tables = render_markdown(std::slice::from_ref(&result));
    let block = tables.split(title).nth(1).unwrap_or_else(|| panic!("{tables}"));
    let expected = format!("| ▼ {estimate} ({low}–{high}) |  |\n");
    let line = block.lines().find(|line| line.starts_with("| fragile × go <net> & \"friends\" | ")).unwrap();
    assert!(format!("{line}\n").ends_with(&expected), "{line}");
    result.contenders.iter_mut().for_each(|record| record.base = None);
    analyse(&mut result);
    for text in [render_html(&result), render_table(&result), render_markdown(&[result])] {
        assert!(!text.contains(title), "no table without bases: {text}");
    }
}

#[test]
fn won_and_lost_cells_are_counted_per_peer() {
    let mut result = sample();
    let slices = CleanSlices::of(&result);
    let ratio = slices.ratio(1, 0, 5, Measure::Cpu);
    assert!(ratio.unwrap().estimate < 0.95);
    let versus = |cell: usize, cpu_verdict: Verdict| PairComparison {
        contender: "anello io_uring".to_owned(),
        peer: "tokio".to_owned(),
        cell: result.plan.cells[cell],
        mixed_phase_rounds: 0,
        comparison: Comparison {
            rate_ratio: None,
            cpu_ratio: ratio,
            p99_ratio: None,
            memory_ratio: None,
            rate_verdict: Verdict::NotComparable,
            cpu_verdict,
            p99_verdict: Verdict::NotComparable,
            memory_verdict: Verdict::NotComparable,
            ..Comparison::default()
        },
    };
    let versus = vec![
        versus(0, Verdict::Less),
        versus(1, Verdict::Less),
        versus(2, Verdict::NoDifference),
        versus(3, Verdict::More),
    ];
    result.peer_comparisons = versus;
    let page = render_html(&result);
    check_markup(&page).unwrap();
    assert!(page.contains("title=\"2 better, 1 equal, 1 worse, 0 too noisy\""));
    let tables = render_markdown(&[result]);
    assert!(tables.contains("| tokio | 2 / 1 / 1 (× 0."), "{tables}");
    assert!(tables.contains("| tokio | **▲ 0.") && tables.contains("| tokio | ▼ 0."), "{tables}");
}

/// Returns the sample with driver names that real servers report, and with these kinds of peers.
fn sample_with_drivers(kinds: &[(usize, Kind)]) -> LabResult {
    let mut result = sample();
    for (record, driver) in [(0, "io_uring"), (1, "epoll"), (5, "epoll"), (6, "epoll"), (7, "epoll")] {
        result.contenders[record].driver = Some(driver.to_owned());
    }
    for (record, kind) in kinds {
        result.contenders[*record].kind = Some(*kind);
    }
    analyse(&mut result);
    result
}

#[test]
fn runtimes_with_other_io_are_shown_with_their_driver() {
    let runtimes = "Async runtimes at 50 or more connections";
    assert!(!render_html(&sample()).contains(runtimes), "no table without runtimes");
    let result = sample_with_drivers(&[(5, Kind::Runtime)]);
    assert_eq!(result.runtime_comparisons.len(), 6, "anello io_uring against tokio in each cell");
    let page = render_html(&result);
    check_markup(&page).unwrap();
    assert_eq!(page.matches(&format!("<h4>{runtimes}")).count(), 1);
    let table = page.split(runtimes).nth(1).unwrap().split("</table>").next().unwrap();
    assert!(table.contains("anello io_uring <small>against tokio</small>"), "{table}");
    assert!(
        table.contains("anello epoll <small>against tokio</small>") && !table.contains("fragile"),
        "{table}"
    );
    // In each of two groups, there is one table for CPU and one for the rate.
    let titles =
        [": server CPU per request of anello io_uring, × peer", ": requests/s of anello io_uring, × peer"];
    assert_eq!(titles.map(|title| page.matches(title).count()), [2, 2]);
    let versus = result.runtime_comparisons.iter().find(|versus| versus.cell == Cell::echo(128, 50)).unwrap();
    let ratio = format!("{:.2}", versus.comparison.cpu_ratio.unwrap().estimate);
    let table = page.split(titles[0]).nth(1).unwrap().split("</table>").next().unwrap();
    let row = table.split("tokio <small>(epoll)</small></th>").nth(1).unwrap().split("</tr>").next().unwrap();
    assert!(row.contains(&ratio), "{ratio} is not in {row}");
}

#[test]
fn tables_list_every_peer_for_both_drivers() {
    let result = sample_with_drivers(&[(5, Kind::Runtime), (7, Kind::Loop)]);
    let page = render_html(&result);
    check_markup(&page).unwrap();
    let standings = |own: &str| {
        page.split(&format!("<h4>{own} against peers")).nth(1).unwrap().split("</table>").next().unwrap()
    };
    for peer in ["tokio", "go &lt;net&gt; &amp; &quot;friends&quot;", "fragile"] {
        let (same, other) = (format!("{peer}</th>"), format!("{peer} <small>(epoll)</small></th>"));
        assert_eq!(standings("anello epoll").matches(&same).count(), 1, "{peer}, same driver");
        assert_eq!(standings("anello io_uring").matches(&other).count(), 1, "{peer}, other driver");
    }
    let summary = "<summary>Ratios of anello to each peer</summary>";
    assert_eq!(page.matches(summary).count(), 2, "one in each group");
    let tables = render_markdown(&[result]);
    // A peer has 1 line in the standings, 1 for each of 2 measures in each of 2 groups, and at most 1 for instructions.
    for (line, instructions) in [("| tokio (epoll) |", 1), ("| fragile (epoll) |", 0)] {
        assert_eq!(tables.matches(line).count(), 1 + 2 * 2 + instructions, "{line} in {tables}");
    }
    let of_epoll = tables.split("\nanello epoll against peers").nth(1).unwrap();
    let of_epoll = of_epoll.split("\n\n").nth(2).unwrap();
    assert!(["| tokio |", "| fragile |"].iter().all(|line| of_epoll.contains(line)), "{of_epoll}");
}

#[test]
fn published_ratios_are_shown_with_local_ratios() {
    let result = sample();
    let all = compare_with_published(&result);
    assert_eq!(all[0].source.key, "frevib", "the scenario's own source comes first");
    let comparison = all[0]
        .comparisons
        .iter()
        .find(|row| {
            row.published_cell.connections == 300
                && row.published_cell.workload == Workload::Echo { message_bytes: 128 }
        })
        .unwrap();
    assert!((comparison.published_ratio.unwrap() - 216_637.0 / 145_517.0).abs() < 1e-9);
    let bare = comparison.ours.iter().find(|ours| ours.contender == "bare io_uring").unwrap();
    // The exact ratio is at most 6051.2 ns / 4051.2 ns. Batching and limits of the simulated servers reduce it.
    let ratio = bare.ratio.unwrap();
    assert!(ratio.low > 1.2 && ratio.high < 1.7, "{ratio:?}");
    assert_eq!(bare.judgement, Judgement::Confirmed);
    let anello = comparison.ours.iter().find(|ours| ours.contender == "anello io_uring").unwrap();
    assert_eq!((anello.to.as_str(), anello.judgement), ("anello epoll", Judgement::Refuted));
    let claim =
        all[0].claims.iter().find(|claim| claim.contender == "bare io_uring" && claim.holds == 2).unwrap();
    assert_eq!((claim.to.as_str(), claim.does_not_hold), ("bare epoll", 0));
    let here = claim.here.unwrap();
    assert!(here.0 > 1.2 && here.1 < 1.7 && !claim.load_bound, "{claim:?}");
    assert_eq!(
        claim.published.map(|(low, high)| (format!("{low:.2}"), format!("{high:.2}"))),
        Some(("1.43".to_owned(), "1.49".to_owned()))
    );
    let page = render_html(&result);
    assert!(
        page.contains("other machine")
            && page.contains("“At one connection, io_uring and epoll are equally fast”")
    );
}

#[test]
fn published_cell_matches_share_of_one_load_core() {
    let mut result = sample();
    let rated = |connections: usize, rate: Option<u64>| Cell {
        offered_per_second: rate,
        ..Cell::echo(1024, connections)
    };
    // Replace only the cells; the slices stay unchanged.
    let cells =
        [rated(80, None), rated(320, None), rated(80, Some(12_000)), rated(80, Some(4_100)), rated(5, None)];
    for (index, cell) in cells.into_iter().enumerate() {
        result.plan.cells[index] = cell;
        result.cells[index].cell = cell;
    }
    let all = compare_with_published(&result);
    let of = |key: &str| {
        let published = all.iter().find(|published| published.source.key == key).unwrap();
        let cells = |row: &anello_lab::published::Comparison| {
            (row.published_cell.connections, row.published_cell.offered_per_second, row.cell.connections)
        };
        let cpu_or_rate =
            published.comparisons.iter().filter(|row| row.pair == 0 && row.measure != Measure::P50);
        cpu_or_rate.map(cells).collect::<Vec<_>>()
    };
    assert_eq!(of("monoio-peak"), [(320, None, 320)], "the full cell is preferred to the share");
    assert_eq!(of("monoio-fixed"), [(320, Some(16_000), 80), (320, Some(48_000), 80)]);
}
