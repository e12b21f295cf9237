//! Tests for the tables, matrices and bars in pages and terminal output, for each kind of cell.

use anello_lab::compare::render_comparison;
use anello_lab::{
    Cell, DiskOperation, LabResult, Workload, echo_cells, render_html, render_json, render_markdown,
    render_plots, render_table,
};

use super::{check_markup, sample, simulate_in};
use crate::simulated::lab::compare;
use crate::simulated::simulation::Noise;

#[test]
fn instructions_are_shown_with_cpu() {
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
    let block = table.split("\n50 connections, 128 bytes\n").nth(1).unwrap_or_else(|| panic!("{table}"));
    let block = &block[..block.find("\n\n").unwrap()];
    let heading = block.lines().find(|line| line.starts_with("server ")).unwrap();
    assert!(heading.ends_with("  instructions/request"), "{block}");
    for (name, shown) in
        [("bare epoll  ", "  12.1k"), ("bare epoll again  ", "  12.1k"), ("tokio  ", "  12.6k")]
    {
        let line = block.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.ends_with(shown), "{line}");
    }
    let markdown = render_markdown(std::slice::from_ref(&result));
    let counts = markdown.split("instructions per request of anello io_uring and peers\n").nth(1).unwrap();
    assert!(
        counts.lines().any(|line| line.starts_with("| tokio |") && line.contains(" 12571 |")),
        "{counts}"
    );
    assert!(render_html(&result).contains("<td>12.6k</td>"));
}

#[test]
fn low_deciles_are_shown_after_cpu_ratios() {
    let result = sample();
    let page = render_html(&result);
    let rows = result.cells.iter().flat_map(|cell| &cell.rows);
    let ratios: Vec<_> =
        rows.filter(|row| row.comparison.cpu_ratio.is_some()).filter_map(|row| row.cpu_low_ratio).collect();
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
fn sweep_peaks_are_shown_in_page_and_table() {
    let (page, table) = (render_html(&sample()), render_table(&sample()));
    let title = "Peak requests/s by number of connections";
    assert!(!page.contains(title) && !table.contains(title), "three cells are not a sweep");
    let result = simulate_in(echo_cells(&[100], &[1, 50, 150, 220, 300]), Noise::USUAL);
    let page = render_html(&result);
    check_markup(&page).unwrap();
    let peaks = page.split(title).nth(1).unwrap().split("</table>").next().unwrap();
    assert!(peaks.contains("<th scope=\"col\">100 bytes</th>"), "{peaks}");
    assert!(peaks.contains("bare epoll</th>") && !peaks.contains("bare epoll again"), "{peaks}");
    assert!(peaks.contains(" <small>published 206k at 520</small>"), "published peak of tokio: {peaks}");
    assert_eq!(peaks.matches("<small>published").count(), 1, "no other published peak: {peaks}");
    assert!(peaks.contains("absent</th><td class=\"muted\">–</td>"), "{peaks}");
    let share = "Saturated: servers were limited to 80 % of their core.";
    let table = render_table(&result);
    assert!(page.contains(share) && table.replace('\n', " ").contains(share), "{table}");
    let peaks = table.split(title).nth(1).unwrap_or_else(|| panic!("{table}"));
    let line = peaks.lines().find(|line| line.starts_with("tokio ")).unwrap();
    // The simulation, including its noise, depends only on the seed.
    assert!(line.ends_with("  199k at 300 → published 206k at 520"), "{line}");
    assert!(table.lines().all(|line| line.chars().count() <= 108), "{table}");
}

#[test]
fn table_shows_matrix_and_bars_within_width() {
    let table = render_table(&sample());
    assert!(
        table.contains("Echo, 128 bytes: server CPU per request, × bare epoll (less is better)"),
        "{table}"
    );
    assert!(table.contains("Echo, 512 bytes: Requests/s (more is better)"), "{table}");
    // The conclusion and the ratios come first.
    let conclusion = anello_lab::findings::conclusion(&sample());
    let start = format!(
        "{conclusion}\nMethod: whole core; saturated: server limited to 80 % of its core.\n\nEcho, 128 bytes: server CPU"
    );
    assert!(conclusion.split_whitespace().count() <= 20 && table.starts_with(&start), "{table}");
    assert!(table.contains("█") && table.contains("skipped") && table.contains("failed"), "{table}");
    for line in table.lines() {
        assert!(line.chars().count() <= 108, "{} columns: {line}", line.chars().count());
        assert_eq!(line, line.trim_end());
    }
}

#[test]
fn markdown_marks_losses_and_escapes_bars() {
    let renamed = render_json(&sample()).unwrap().replace("\"tokio\"", "\"to|kio\"");
    let markdown = render_markdown(&[LabResult::from_json(&renamed).unwrap()]);
    assert!(markdown.contains("\n| to\\|kio | ") && !markdown.contains("to|kio"), "{markdown}");
    let lines = || markdown.lines();
    assert!(lines().any(|line| line.starts_with("| go <net> & \"friends\" | **▲ 1.")), "{markdown}");
    assert!(lines().any(|line| line.starts_with("| absent | skipped | ")), "{markdown}");
    assert!(lines().any(|line| line.starts_with("| fragile × go ") && line.ends_with(" |  |")), "{markdown}");
}

#[test]
fn disk_reports_use_operations_and_workers() {
    let workload = Workload::Disk { operation: DiskOperation::RandomRead, direct: true, block_bytes: 4096 };
    let depths = [1, 16].map(|depth| Cell { workload, ..Cell::echo(1, depth) });
    let result = simulate_in(depths.to_vec(), Noise { slow_factor: 1.6, ..Noise::USUAL });
    let table = render_table(&result);
    for expected in [
        "4096 bytes: CPU per operation, × bare epoll (less is better)",
        "4096 bytes: operations/s, × bare epoll (more is better)",
        "4096 bytes: Operations/s (more is better)",
        "(equal workers)",
        "queue depth 1 ",
        "queue depth 16",
        "CPU µs/operation",
    ] {
        assert!(table.contains(expected), "{expected} is not in {table}");
    }
    let page = render_html(&result);
    let page = page.split("id=\"raw0\">").next().unwrap();
    assert!(page.contains("CPU µs/operation") && page.contains("CPU per operation of anello io_uring"));
    let comparison = render_comparison(&compare(&result, &result, 0.05));
    for (name, text) in [("table", table.as_str()), ("page", page), ("comparison", comparison.as_str())] {
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("request")).collect();
        assert!(lines.is_empty(), "the {name} mentions requests: {lines:#?}");
    }
    let plots = render_plots(&result);
    assert!(plots.iter().any(|(name, _)| name.ends_with("-cpu-per-operation.svg")));
    assert!(plots.iter().all(|(name, svg)| !name.contains("request") && !svg.contains("request")));
}

#[test]
fn idle_connections_are_reported_by_memory() {
    let cell = Cell { workload: Workload::Idle, ..Cell::echo(1, 200) };
    let result = simulate_in(vec![cell], Noise::USUAL);
    let table = render_table(&result);
    let block = table.split("\n200 idle connections\n").nth(1).unwrap_or_else(|| panic!("{table}"));
    let (heading, block) = block.split_once('\n').unwrap();
    let block = &block[..block.find("\n\n").unwrap()];
    assert!(
        heading.starts_with("Noise floor: memory per connection ±") && heading.ends_with(" %."),
        "{heading}"
    );
    let line = |name: &str| block.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("server").contains("memory per connection"), "{block}");
    assert!(line("anello epoll").contains(" KiB ±"), "{block}");
    let ratios = table.split("\nIdle connections: memory per connection, × bare epoll").nth(1).unwrap();
    let ratio = ratios.lines().find(|line| line.starts_with("anello epoll ")).unwrap();
    assert!(ratio.contains("–"), "{ratio}");
    assert!(line("absent").contains("skipped: "), "{block}");
    assert!(!block.contains("not measured") && !block.contains("s/s"), "{block}");
    let page = render_html(&result);
    check_markup(&page).unwrap();
    let figures = page.split("<summary>All figures</summary>").nth(1).unwrap();
    let figures = figures.split("</details>").next().unwrap();
    assert!(figures.contains("<th scope=\"col\">memory per connection</th>"), "{figures}");
    assert!(figures.contains(" KiB <small>±") && figures.contains("colspan=\"3\">skipped: "), "{figures}");
    assert!(!figures.contains("not measured") && !figures.contains("requests/s<"), "{figures}");
}

#[test]
fn cell_resolution_uses_compared_measures() {
    let rated = Cell { offered_per_second: Some(100_000), ..Cell::echo(128, 80) };
    let table = render_table(&simulate_in(vec![rated, Cell::echo(128, 80)], Noise::USUAL));
    let resolutions: Vec<&str> = table.lines().filter(|line| line.starts_with("Noise floor: ")).collect();
    let [of_rated, of_loop] = resolutions[..] else { panic!("{table}") };
    for (line, expected, other) in [
        (of_rated, ["CPU per request ±", "median latency ±", "p99 latency ±"].as_slice(), "requests/s ±"),
        (of_loop, ["requests/s ±", "CPU per request ±"].as_slice(), "latency ±"),
    ] {
        assert!(expected.iter().all(|text| line.contains(text)) && !line.contains(other), "{line}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 108), "{table}");
}

#[test]
fn bar_heading_uses_singular_for_one_connection() {
    let table = render_table(&sample());
    assert!(table.contains(" 1 connection ") && table.contains("50 connections"), "{table}");
    assert!(!table.contains("1 connections"), "{table}");
    let idle = [1, 1000].map(|connections| Cell { workload: Workload::Idle, ..Cell::echo(1, connections) });
    let table = render_table(&simulate_in(idle.to_vec(), Noise::USUAL));
    assert!(table.contains(" 1 idle connection ") && table.contains("1000 idle connections"), "{table}");
    assert!(!table.contains("1 idle connections"), "{table}");
}
