//! Drawing of the view.

use anello_load::Phase;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Bar, BarChart, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Sparkline, Table,
};

use super::state::{LoadState, Point};
use crate::common::format::{format_count, format_ns, group_digits};

/// Minimum size of a terminal on which everything is shown.
const FULL_WIDTH: u16 = 80;
const FULL_HEIGHT: u16 = 20;

/// Height of the figures below the charts, with their borders.
const FIGURES_HEIGHT: u16 = 8;

pub fn draw(state: &LoadState, frame: &mut Frame<'_>) {
    let area = frame.area();
    let is_full = area.width >= FULL_WIDTH && area.height >= FULL_HEIGHT;
    let errors_height = if is_full { 3 } else { 0 };
    // On a small terminal, the figures are more useful than the chart.
    let chart = if area.height > FIGURES_HEIGHT + 8 { Constraint::Min(6) } else { Constraint::Length(0) };
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        chart,
        Constraint::Length(errors_height),
        Constraint::Max(FIGURES_HEIGHT),
        Constraint::Length(1),
    ]);
    let [title, phase, chart, errors, figures, footer] = rows.areas(area);
    let heading =
        Line::from(vec![Span::from(state.target.as_str()).bold(), Span::from(format!("  {}", state.mode))]);
    frame.render_widget(heading, title);
    draw_phase(state, frame, phase);
    draw_rates(state, frame, chart);
    draw_errors(state, frame, errors);
    if is_full {
        let columns =
            Layout::horizontal([Constraint::Length(31), Constraint::Length(27), Constraint::Min(0)]);
        let [counts, percentiles, histogram] = columns.areas(figures);
        draw_counts(state, frame, counts);
        draw_percentiles(state, frame, percentiles);
        draw_histogram(state, frame, histogram);
    } else if area.width >= 61 {
        let [counts, percentiles] =
            Layout::horizontal([Constraint::Length(31), Constraint::Min(0)]).areas(figures);
        draw_counts(state, frame, counts);
        draw_percentiles(state, frame, percentiles);
    } else {
        draw_counts(state, frame, figures);
    }
    draw_footer(state, frame, footer);
}

fn draw_phase(state: &LoadState, frame: &mut Frame<'_>, area: Rect) {
    let Some(progress) = &state.progress else {
        return frame.render_widget("connecting", area);
    };
    let (elapsed, planned) = (progress.elapsed.as_secs_f64(), progress.planned.as_secs_f64());
    let name = match progress.phase {
        Phase::Waiting => "waiting for the start time",
        Phase::Connecting => "connecting",
        Phase::WarmUp => "warm-up",
        Phase::Measuring if elapsed > planned => "waiting for the last replies",
        Phase::Measuring => "measuring",
        _ => "running",
    };
    let step = if state.is_sweep { format!(", step {}", state.steps + 1) } else { String::new() };
    let left = (planned - elapsed).max(0.0);
    let paused = if state.is_paused() { "PAUSED, " } else { "" };
    let limit = state.max_requests.filter(|_| progress.phase == Phase::Measuring);
    let (label, ratio) = match limit {
        Some(limit) => {
            let [requests, all] = [progress.requests, limit].map(format_count);
            let label = format!("{paused}{name}: {requests} of {all} requests, {elapsed:.0} s");
            (label, progress.requests as f64 / limit as f64)
        }
        None => {
            let label = format!("{paused}{name}{step}: {elapsed:.0} s of {planned:.0} s, {left:.0} s left");
            (label, if planned > 0.0 { elapsed / planned } else { 1.0 })
        }
    };
    let colour = if state.is_paused() { Color::Yellow } else { Color::Blue };
    let ratio = ratio.clamp(0.0, 1.0);
    let gauge = Gauge::default().ratio(ratio).label(label).use_unicode(true).gauge_style(colour);
    frame.render_widget(gauge, area);
}

fn draw_rates(state: &LoadState, frame: &mut Frame<'_>, area: Rect) {
    if area.height < 4 {
        return;
    }
    // An interval is a horizontal line. Lines that meet are connected.
    let line = |rate: &dyn Fn(&Point) -> Option<f64>| -> Vec<(f64, f64)> {
        let ends = |point: &Point| rate(point).map(|rate| [(point.start_s, rate), (point.end_s, rate)]);
        state.points.iter().filter_map(ends).flatten().collect()
    };
    let answered = line(&|point| Some(point.per_second(point.requests)));
    let offered = line(&|point| point.offered.map(|offered| point.per_second(offered)));
    let max = answered.iter().chain(&offered).map(|&(_, rate)| rate).fold(1.0, f64::max) * 1.1;
    let end_s = state.axis_end_s();
    let paused = pause_columns(state, end_s / f64::from(area.width), max);
    let (mut legend, mut datasets) = (vec!["requests/s: ".into()], Vec::new());
    let lines = (Marker::Braille, GraphType::Line);
    for (name, colour, (marker, kind), data) in [
        ("paused", Color::DarkGray, (Marker::Block, GraphType::Bar), &paused),
        ("offered", Color::Yellow, lines, &offered),
        ("answered", Color::Cyan, lines, &answered),
    ] {
        if !data.is_empty() {
            legend.push(Span::styled(format!("{name} "), colour));
            datasets.push(Dataset::default().marker(marker).graph_type(kind).style(colour).data(data));
        }
    }
    let seconds = |part: f64| format!("{:.0} s", end_s * part);
    let rates = |part: f64| group_digits(max * part);
    let x_axis = Axis::default().bounds([0.0, end_s]).labels([seconds(0.0), seconds(0.5), seconds(1.0)]);
    let y_axis = Axis::default().bounds([0.0, max]).labels([rates(0.0), rates(0.5), rates(1.0)]);
    let chart = Chart::new(datasets)
        .block(Block::bordered().title(Line::from(legend)))
        .x_axis(x_axis)
        .y_axis(y_axis)
        .legend_position(None);
    frame.render_widget(chart, area);
}

/// Returns points at the top of the chart for each column in a pause, and at least one for each pause.
fn pause_columns(state: &LoadState, column_s: f64, top: f64) -> Vec<(f64, f64)> {
    let mut columns = Vec::new();
    for &(start_s, end_s) in &state.pauses {
        let end_s = end_s.unwrap_or_else(|| state.now_s());
        let count = ((end_s - start_s) / column_s) as usize;
        columns.extend((0..=count).map(|number| (start_s + number as f64 * column_s, top)));
    }
    columns
}

fn draw_errors(state: &LoadState, frame: &mut Frame<'_>, area: Rect) {
    let block = Block::bordered().title(format!("errors: {}", format_count(state.errors())));
    let width = usize::from(block.inner(area).width);
    let mut columns = vec![0; width];
    for point in &state.points {
        let column = ((point.start_s + point.end_s) / 2.0 / state.axis_end_s() * width as f64) as usize;
        if let Some(column) = columns.get_mut(column) {
            *column += point.errors;
        }
    }
    frame.render_widget(Sparkline::default().block(block).data(&columns).style(Color::Red), area);
}

fn draw_counts(state: &LoadState, frame: &mut Frame<'_>, area: Rect) {
    let progress = state.progress.as_ref();
    let offered = progress.and_then(|progress| progress.offered_per_second);
    let of = offered.map_or(String::new(), |offered| format!(" of {}", format_count(offered)));
    let open = progress.map_or(0, |progress| progress.connections);
    let total = state.total.as_ref();
    let requests = total.map_or(0, |total| total.requests);
    let cpu = |cpu_ns: Option<u64>, elapsed_ns: u64| match cpu_ns {
        Some(cpu_ns) if elapsed_ns > 0 => format!("{:.0} %", cpu_ns as f64 * 100.0 / elapsed_ns as f64),
        _ => "-".to_owned(),
    };
    let last = state.last.as_ref();
    let elapsed_ns = last.map_or(0, |last| last.elapsed_ns);
    let server = match last.map(|last| last.server) {
        Some(None) => "see --server-pid".to_owned(),
        server => cpu(server.flatten().map(|usage| usage.cpu_ns), elapsed_ns),
    };
    let errors = Span::from(format_count(state.errors()));
    let rows = [
        Row::new(["requests".into(), Span::from(format_count(requests))]),
        Row::new(["requests/s".into(), Span::from(group_digits(state.rate()) + &of).bold()]),
        Row::new([
            "connections".into(),
            Span::from(format!("{} of {}", format_count(open), format_count(state.connections))),
        ]),
        Row::new(["errors".into(), if state.errors() > 0 { errors.red().bold() } else { errors }]),
        Row::new(["server CPU".into(), Span::from(server)]),
        Row::new(["load CPU".into(), Span::from(cpu(last.map(|last| last.load_cpu_ns), elapsed_ns))]),
    ];
    let table = Table::new(rows, [Constraint::Length(11), Constraint::Min(0)]);
    frame.render_widget(table.block(Block::bordered().title("load")), area);
}

fn draw_percentiles(state: &LoadState, frame: &mut Frame<'_>, area: Rect) {
    let [last, total] = state.latencies().map(|latency| match latency {
        Some(latency) => [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns]
            .map(|ns| format_ns(ns as f64)),
        None => ["-"; 5].map(str::to_owned),
    });
    let rows = ["p50", "p90", "p99", "p99.9", "max"].into_iter().zip(last.into_iter().zip(total));
    let rows = rows.map(|(name, (last, total))| {
        Row::new([Line::from(name), Line::from(last).right_aligned(), Line::from(total).right_aligned()])
    });
    let header = [Line::default(), Line::from("last").right_aligned(), Line::from("total").right_aligned()];
    let table = Table::new(rows, [Constraint::Length(5), Constraint::Length(9), Constraint::Length(9)])
        .header(Row::new(header).style(Style::new().dim()));
    frame.render_widget(table.block(Block::bordered().title("latency")), area);
}

fn draw_histogram(state: &LoadState, frame: &mut Frame<'_>, area: Rect) {
    let block = Block::bordered().title("latency histogram");
    let shares = state.histogram(usize::from(block.inner(area).height));
    let bars = shares.into_iter().map(|(upper_ns, share)| {
        let bar = Bar::with_label(format!("≤ {}", format_ns(upper_ns)), (share * 1e6) as u64);
        bar.text_value(format!("{:.1} %", share * 100.0))
    });
    let chart = BarChart::horizontal(bars.collect::<Vec<_>>()).bar_gap(0).bar_style(Color::Green);
    frame.render_widget(chart.value_style(Style::new().fg(Color::Green).reversed()).block(block), area);
}

fn draw_footer(state: &LoadState, frame: &mut Frame<'_>, area: Rect) {
    let text = match (state.is_stopping, state.can_pause(), state.is_paused()) {
        (true, ..) => "ending; Ctrl-C exits without a report",
        (_, false, _) => "q end and report   (a closed loop cannot be paused)",
        (_, _, false) => "q end and report   space pause",
        (_, _, true) => "q end and report   space resume   (requests due in the pause are skipped)",
    };
    frame.render_widget(Paragraph::new(text).dim(), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::load::view::state::tests::state;

    fn render(state: &LoadState, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(state, frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn view_of_limited_load_shows_requests() {
        let mut state = state(4);
        state.max_requests = Some(1_000_000);
        let screen = render(&state, 80, 24);
        let requests = format_count(state.progress.as_ref().unwrap().requests);
        assert!(screen.contains(&format!("measuring: {requests} of 1,000,000 requests, 4 s")), "{screen}");
    }

    #[test]
    fn view_shows_everything_on_80_by_24() {
        let mut state = state(4);
        state.set_paused(true);
        let screen = render(&state, 80, 24);
        for expected in [
            "127.0.0.1:7000  open loop, 1,000 requests/s, constant",
            "PAUSED, measuring: 4 s of 10 s, 6 s left",
            "requests/s: paused offered answered",
            "│1,100│",
            "10 s│",
            "errors: 0",
            "requests    1,000 ",
            "requests/s  400 of 1,000 ",
            "connections 49 of 50 ",
            "load CPU    25 % ",
            "p50      100 µs    100 µs",
            "p99     3.00 ms   3.00 ms",
            "≤ 3.00 ms 10.0 %",
            "space resume",
        ] {
            assert!(screen.contains(expected), "{expected:?} is missing in\n{screen}");
        }
    }

    #[test]
    fn small_terminals_show_the_counts() {
        for (width, height) in [(79, 24), (60, 24), (40, 12), (30, 9)] {
            let screen = render(&state(4), width, height);
            assert!(screen.contains("400 of 1,000"), "{width} x {height}:\n{screen}");
        }
    }

    #[test]
    fn view_is_drawn_at_any_size() {
        for (width, height) in [(1, 1), (2, 2), (5, 3), (200, 2), (3, 60), (300, 100)] {
            for seconds in [0, 1, 5] {
                render(&state(seconds), width, height);
            }
        }
    }
}
