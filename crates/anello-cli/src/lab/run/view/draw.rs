//! Drawing of the view.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, RenderDirection, Row, Sparkline, Table};

use super::state::{LabState, requests_per_second};
use crate::common::format::{format_ns, group_digits};

/// Minimum height of a terminal on which the last slice is shown above the table.
const FULL_HEIGHT: u16 = 20;

pub fn draw(state: &LabState, frame: &mut Frame<'_>) {
    let slice_height = if frame.area().height >= FULL_HEIGHT { 7 } else { 0 };
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(slice_height),
        Constraint::Min(0),
        Constraint::Length(1),
        Constraint::Length(1),
    ]);
    let [title, progress, slice, table, failure, footer] = rows.areas(frame.area());
    let (contenders, cells) = (state.contenders.len(), state.cells.len());
    let heading = format!("{}: {contenders} contenders in {cells} cells; {}", state.title, state.activity);
    frame.render_widget(Line::from(heading).bold(), title);
    draw_progress(state, frame, progress);
    let columns = Layout::horizontal([Constraint::Length(32), Constraint::Length(19), Constraint::Min(0)]);
    let [counts, percentiles, rates] = columns.areas(slice);
    draw_slice(state, frame, counts);
    draw_percentiles(state, frame, percentiles);
    let chart = Sparkline::default()
        .block(Block::bordered().title("requests/s of the slices in this cell"))
        .direction(RenderDirection::RightToLeft)
        .style(Color::Cyan);
    let newest_first: Vec<u64> = state.rates_in_cell().into_iter().rev().collect();
    frame.render_widget(chart.data(&newest_first), rates);
    draw_table(state, frame, table);
    if let Some(text) = &state.failure {
        frame.render_widget(Line::from(text.as_str()).red(), failure);
    }
    let keys = match state.is_stopping {
        true => "ending after this slice; Ctrl-C exits without a report",
        false => "q end and report the results so far",
    };
    frame.render_widget(Paragraph::new(keys).dim(), footer);
}

fn draw_progress(state: &LabState, frame: &mut Frame<'_>, area: Rect) {
    let seconds = |seconds: u64| format!("{}:{:02}", seconds / 60, seconds % 60);
    let (elapsed, left) = (seconds(state.elapsed().as_secs()), seconds(state.time_left().as_secs()));
    let label = format!("{} of {} slices, {elapsed} elapsed, about {left} left", state.done, state.slices);
    let ratio = (state.done as f64 / state.slices.max(1) as f64).clamp(0.0, 1.0);
    frame.render_widget(
        Gauge::default().ratio(ratio).label(label).use_unicode(true).gauge_style(Color::Blue),
        area,
    );
}

fn draw_slice(state: &LabState, frame: &mut Frame<'_>, area: Rect) {
    let last = state.measured.last();
    let value = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let percent = |fraction: f64| format!("{:.0} %", fraction * 100.0);
    let name = state.current.map(|(contender, ..)| state.contenders[contender].clone());
    let round = state.current.map(|(.., round)| format!("{}", round + 1));
    let server = last.map(|slice| percent(slice.cpu_ns as f64 / slice.elapsed_ns.max(1) as f64));
    let rows = [
        Row::new(["running".to_owned(), value(name)]),
        Row::new(["round".to_owned(), value(round)]),
        Row::new([
            "requests/s".to_owned(),
            value(last.map(|slice| group_digits(requests_per_second(slice)))),
        ]),
        Row::new(["server CPU".to_owned(), value(server)]),
        Row::new(["load CPU".to_owned(), value(last.map(|slice| percent(slice.load_busy)))]),
    ];
    let table = Table::new(rows, [Constraint::Length(11), Constraint::Min(0)]);
    frame.render_widget(table.block(Block::bordered().title("slice")), area);
}

fn draw_percentiles(state: &LabState, frame: &mut Frame<'_>, area: Rect) {
    let last = state.measured.last();
    let values = last.map(|slice| [slice.p50_ns, slice.p90_ns, slice.p99_ns, slice.p999_ns, slice.max_ns]);
    let rows = ["p50", "p90", "p99", "p99.9", "max"].into_iter().enumerate().map(|(index, name)| {
        let text = values.map_or("-".to_owned(), |values| format_ns(values[index] as f64));
        Row::new([Line::from(name), Line::from(text).right_aligned()])
    });
    let table = Table::new(rows, [Constraint::Length(5), Constraint::Min(0)]);
    frame.render_widget(table.block(Block::bordered().title("latency")), area);
}

/// Draws the rows of the current cell and, as far as there is space, of the following and the preceding cells.
fn draw_table(state: &LabState, frame: &mut Frame<'_>, area: Rect) {
    let count = state.contenders.len();
    let current_cell = state.current.map_or(0, |(_, cell, _)| cell);
    let visible = usize::from(area.height.saturating_sub(3));
    let first = (current_cell * count).min((state.cells.len() * count).saturating_sub(visible));
    let rows = (first..state.cells.len() * count).take(visible).map(|index| {
        let (cell, contender) = (index / count, index % count);
        let values = state.row(cell, contender);
        let number = |value: Option<f64>, format: fn(f64) -> String| {
            Line::from(value.map_or("-".to_owned(), format)).right_aligned()
        };
        let row = Row::new([
            Line::from(state.cells[cell].to_string()),
            Line::from(state.contenders[contender].as_str()),
            number(values.rate, group_digits),
            number(values.cpu_ns, format_ns),
            number(values.p99_ns, format_ns),
            Line::from(format!("{}/{}", values.slices, state.slices_per_row)).right_aligned(),
        ]);
        let is_current = state.current.is_some_and(|current| (current.1, current.0) == (cell, contender));
        if is_current { row.style(Style::new().bold().fg(Color::Yellow)) } else { row }
    });
    let widths = [
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
    ];
    let right = |name| Line::from(name).right_aligned();
    let header = [
        Line::from("cell"),
        Line::from("contender"),
        right("requests/s"),
        right("CPU/req."),
        right("p99"),
        right("slices"),
    ];
    let table = Table::new(rows, widths).header(Row::new(header).style(Style::new().dim()));
    frame.render_widget(table.block(Block::bordered().title("medians so far")), area);
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use anello_lab::result::{Quality, Slice};
    use anello_lab::{LabConfig, Progress};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn slice(contender: usize, cell: usize, requests: u64, quality: Quality) -> Slice {
        Slice {
            contender,
            cell,
            pass: 0,
            round: 0,
            start_ns: 0,
            requests,
            elapsed_ns: 1_000_000_000,
            cpu_ns: 800_000_000,
            voluntary_switches: None,
            involuntary_switches: None,
            resident_bytes: None,
            resident_before_bytes: None,
            connections_before: 0,
            load_cpu_ns: 0,
            load_busy: 0.5,
            stolen_ns: 0,
            throttled_ns: 0,
            p50_ns: 1000,
            p90_ns: 2000,
            p99_ns: 3000,
            p999_ns: 4000,
            max_ns: 5000,
            uncorrected_p99_ns: None,
            offered: None,
            late: 0,
            unsent: 0,
            phase: None,
            quality,
        }
    }

    fn render(state: &LabState, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(state, frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn view_shows_slice_and_table() {
        let config = LabConfig::preset("smoke", PathBuf::from("anello")).unwrap();
        let mut state = LabState::new(&config, vec![slice(0, 0, 8_000, Quality::Clean)]);
        assert!(render(&state, 80, 24).contains("starting"));
        state.update(&Progress::Begin { slices: 40 });
        state.update(&Progress::Measuring { contender: 1, cell: 0, round: 2 });
        for (requests, quality) in [
            (10_000, Quality::Clean),
            (99_000, Quality::Stolen),
            (20_000, Quality::Clean),
            (15_000, Quality::Clean),
        ] {
            state.update(&Progress::Measured(Box::new(slice(1, 0, requests, quality))));
        }
        state.update(&Progress::Slices { done: 10 });
        let screen = render(&state, 80, 24);
        for expected in [
            "10 of 40 slices",
            &format!("measuring {}", state.contenders[1]),
            "round       3",
            "requests/s  15,000",
            "server CPU  80 %",
            "load CPU    50 %",
            "p99.9     4.00 µs",
            "     8,000   100 µs  3.00 µs       1/",
            "    15,000  53.3 µs  3.00 µs       4/",
        ] {
            assert!(screen.contains(expected), "{expected:?} is missing in\n{screen}");
        }
    }

    #[test]
    fn view_is_drawn_at_any_size() {
        let config = LabConfig::preset("quick", PathBuf::from("anello")).unwrap();
        let mut state = LabState::new(&config, Vec::new());
        for cell in 0..config.cells.len() {
            state.update(&Progress::Measuring { contender: 0, cell, round: 0 });
            for (width, height) in [(1, 1), (5, 3), (40, 12), (80, 24), (200, 2), (3, 60), (300, 100)] {
                render(&state, width, height);
            }
        }
    }
}
