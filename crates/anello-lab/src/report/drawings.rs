//! Which charts a result is shown in: for every group of cells those that suit what was measured there.
//!
//! | group | lines | beside |
//! |---|---|---|
//! | echo, disk | rate, CPU and p99 against connections (queue depth) | latency curves, ratios |
//! | echo at a fixed rate | p50, p99 and CPU against the offered rate | latency curves, ratios |
//! | idle | none | memory as bars, ratios |

use crate::plan::cell::{Group, Workload};
use crate::report::chart::{Axis, Bar, Mark, Point, RatioColumn, RatioRow, Series, bars, lines, ratio_grid};
use crate::report::format::{interval, sign, times};
use crate::report::palette::{Look, looks};
use crate::report::value;
use crate::result::measure::Measure;
use crate::result::{CellResult, LabResult, Row, Verdict};

/// Cells in one grid of ratios; more go into another below it.
const RATIO_COLUMNS: usize = 6;

/// Ratios beyond these are drawn at the edge.
const LEAST_RELATIVE: f64 = 0.5;
const MOST_RELATIVE: f64 = 2.2;

/// One chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawing {
    /// Name of its file, without the extension.
    pub name: String,
    /// The drawing, in the colours of the page.
    pub svg: String,
}

/// All charts of one group of cells.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupDrawings {
    /// The group.
    pub group: Group,
    /// Ratios to the reference with their intervals; wide.
    pub ratios: Vec<Drawing>,
    /// Lines against what the cells differ in.
    pub lines: Vec<Drawing>,
    /// Bars, where there is nothing to draw lines against.
    pub bars: Vec<Drawing>,
    /// Latency by quantile, a chart for each cell.
    pub curves: Vec<Drawing>,
}

/// The charts of a result, group by group.
pub fn drawings(result: &LabResult) -> Vec<GroupDrawings> {
    let looks = looks(&result.contenders, &result.plan.reference);
    result.groups().into_iter().map(|group| Painter::new(result, &looks, group).all()).collect()
}

/// What is needed to draw one group.
struct Painter<'a> {
    result: &'a LabResult,
    looks: &'a [Look],
    group: Group,
    cells: Vec<&'a CellResult>,
}

impl<'a> Painter<'a> {
    fn new(result: &'a LabResult, looks: &'a [Look], group: Group) -> Painter<'a> {
        let cells = result.cells_of(&group);
        Painter { result, looks, group, cells }
    }

    fn all(&self) -> GroupDrawings {
        let drawn_as_lines: &[Measure] = match (self.group.workload, self.group.connections) {
            (Workload::Idle, _) => &[],
            (_, Some(_)) => &[Measure::P50, Measure::P99, Measure::Cpu, Measure::TotalCpu],
            (_, None) => &[Measure::Rate, Measure::Cpu, Measure::TotalCpu, Measure::P99],
        };
        let compared = self.cells.first().map_or(&[][..], |cell| Measure::of_cell(&cell.cell));
        let bars = if self.group.workload == Workload::Idle { self.memory() } else { Vec::new() };
        // The ratios stand beside the absolute figures that they are made of.
        let drawn = |measure: &Measure| {
            let relative = if *measure == Measure::Cpu { self.relative_lines(*measure) } else { None };
            self.lines(*measure).into_iter().chain(relative)
        };
        GroupDrawings {
            group: self.group,
            ratios: compared.iter().flat_map(|&measure| self.ratios(measure)).collect(),
            lines: drawn_as_lines.iter().flat_map(drawn).collect(),
            bars,
            curves: self.cells.iter().filter_map(|cell| self.curve(cell)).collect(),
        }
    }

    /// Whether a contender gets a line or row of its own: the twin would only hide the reference, and a row of nobody,
    /// which only a result made by hand can have, has no look.
    fn is_shown(&self, contender: usize) -> bool {
        self.result.contenders.get(contender).is_some_and(|record| record.twin_of.is_none())
    }

    fn drawing(&self, what: &str, svg: String) -> Drawing {
        Drawing { name: file_name(&format!("{} {what}", value::group_title(&self.group))), svg }
    }

    /// A figure against what the cells differ in.
    fn lines(&self, measure: Measure) -> Option<Drawing> {
        let all = self.series(|contender, cell, row| {
            let estimate = value::estimate(row, measure)?;
            let shown = |figure: f64| value::shown(measure, figure);
            Some(Point {
                x: 0.0,
                y: estimate.median,
                spread: Some((estimate.low_quartile, estimate.high_quartile)),
                words: format!(
                    "{contender}, {}: {} (quartiles {} to {})",
                    cell.cell,
                    shown(estimate.median),
                    shown(estimate.low_quartile),
                    shown(estimate.high_quartile)
                ),
            })
        })?;
        let values = || all.iter().flat_map(|series| &series.points).map(|point| point.y);
        let words: fn(f64) -> String = match measure {
            Measure::Rate => mark_words,
            _ => |ns| mark_words(ns / 1e3),
        };
        let y = match measure {
            // From idle to overload, and from one connection to a thousand, latency changes by orders of magnitude.
            Measure::P50 | Measure::P99 => Axis::in_factors("", values(), words),
            _ => Axis::from_zero("", values().fold(0.0, f64::max), words),
        };
        let title = format!("{} · {}", value::heading(measure, self.group.workload), value::better(measure));
        Some(self.drawing(measure.name(self.group.workload), lines(&title, &self.axis(), &y, &all)))
    }

    /// The ratio to the reference against what the cells differ in: where the lines of absolute figures lie on each
    /// other, these do not.
    fn relative_lines(&self, measure: Measure) -> Option<Drawing> {
        let reference = &self.result.plan.reference;
        let all = self.series(|contender, cell, row| {
            if contender == reference {
                let words = format!("{contender}, {}: the reference", cell.cell);
                return row.figures.as_ref().map(|_| Point { x: 0.0, y: 1.0, spread: None, words });
            }
            let (ratio, verdict) = value::against_reference(row, measure);
            let ratio = ratio?;
            Some(Point {
                x: 0.0,
                y: ratio.estimate,
                spread: Some((ratio.low, ratio.high)),
                words: format!(
                    "{contender}, {}: {} {} ({})",
                    cell.cell,
                    sign(verdict),
                    times(ratio.estimate),
                    interval(&ratio)
                ),
            })
        })?;
        let values = all.iter().flat_map(|series| &series.points).map(|point| point.y);
        let (low, high) =
            values.fold((0.95f64, 1.05f64), |(low, high), ratio| (low.min(ratio), high.max(ratio)));
        let (low, high) = (low.max(LEAST_RELATIVE) / 1.03, high.min(MOST_RELATIVE) * 1.03);
        let marks = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5];
        let y = Axis {
            title: String::new(),
            marks: marks
                .into_iter()
                .filter(|mark| (low..=high).contains(mark))
                .map(|mark| (mark, times(mark)))
                .collect(),
            low,
            high,
            logarithmic: true,
        };
        let heading = value::heading_of_ratios(measure, self.group.workload);
        let title = format!("{heading}, × {reference} · {}", value::better(measure));
        let name = format!("relative {}", measure.name(self.group.workload));
        Some(self.drawing(&name, lines(&title, &self.axis(), &y, &all)))
    }

    /// A line for each contender, with the points that `point` makes of its rows and that are put into their places
    /// here; none if there is no point at all.
    fn series(&self, point: impl Fn(&str, &CellResult, &Row) -> Option<Point>) -> Option<Vec<Series>> {
        let mut all = Vec::new();
        for (index, contender) in
            self.result.contenders.iter().enumerate().filter(|(index, _)| self.is_shown(*index))
        {
            let placed = |(position, cell): (usize, &&CellResult)| {
                let x = if self.is_rated() { cell.cell.position() } else { position as f64 };
                Some(Point { x, ..point(&contender.name, cell, cell.rows.get(index)?)? })
            };
            let points: Vec<Point> = self.cells.iter().enumerate().filter_map(placed).collect();
            let last_cell = self.cells.iter().rfind(|cell| {
                cell.rows.get(index).is_some_and(|row| point(&contender.name, cell, row).is_some())
            });
            let name = match last_cell {
                Some(last) if Some(last.cell) != self.cells.last().map(|cell| cell.cell) => {
                    format!("{}, to {}", contender.name, value::place(&last.cell))
                }
                _ => contender.name.clone(),
            };
            all.push(Series { contender: index, name, look: self.looks[index].clone(), points });
        }
        all.iter().any(|series| !series.points.is_empty()).then_some(all)
    }

    fn is_rated(&self) -> bool {
        self.group.connections.is_some()
    }

    /// What the cells differ in.
    fn axis(&self) -> Axis {
        let title = value::axis_title(&self.group);
        let names: Vec<String> = self.cells.iter().map(|cell| value::place(&cell.cell)).collect();
        if !self.is_rated() {
            return Axis::of_names(title, &names);
        }
        let marks = self.cells.iter().zip(names).map(|(cell, name)| (cell.cell.position(), name));
        let highest = self.cells.iter().map(|cell| cell.cell.position()).fold(1.0, f64::max);
        Axis {
            title: title.to_owned(),
            marks: marks.collect(),
            low: 0.0,
            high: highest * 1.02,
            logarithmic: false,
        }
    }

    fn memory(&self) -> Vec<Drawing> {
        let most =
            self.cells.iter().flat_map(|cell| &cell.rows).filter_map(|row| {
                value::estimate(row, Measure::Memory).map(|estimate| estimate.high_quartile)
            });
        let most = most.fold(0.0, f64::max);
        if most == 0.0 {
            return Vec::new();
        }
        // Round steps of kibibytes, not of bytes.
        let title = "KiB for each connection, without what the kernel keeps for it";
        let mut axis = Axis::from_zero(title, most / 1024.0, mark_words);
        axis.marks.iter_mut().for_each(|mark| mark.0 *= 1024.0);
        axis.high *= 1024.0;
        let drawn = |cell: &&CellResult| {
            let bar = |(index, row): (usize, &Row)| {
                let estimate = value::estimate(row, Measure::Memory);
                let words = estimate.map_or_else(
                    || value::why_none(&row.outcome).to_owned(),
                    |estimate| value::shown(Measure::Memory, estimate.median),
                );
                let value = estimate
                    .map(|estimate| (estimate.median, Some((estimate.low_quartile, estimate.high_quartile))));
                Bar {
                    contender: index,
                    name: row.contender.clone(),
                    look: self.looks[index].clone(),
                    value,
                    words,
                }
            };
            let all: Vec<Bar> =
                cell.rows.iter().enumerate().filter(|(index, _)| self.is_shown(*index)).map(bar).collect();
            let title = format!("Server memory for each of {} · less is better", cell.cell);
            self.drawing(&format!("memory {}", cell.cell.connections), bars(&title, &axis, &all))
        };
        self.cells.iter().map(drawn).collect()
    }

    /// Latency by quantile of all contenders in one cell; the quantiles stand farther apart the rarer they are.
    fn curve(&self, cell: &CellResult) -> Option<Drawing> {
        let mut all = Vec::new();
        for (index, row) in cell.rows.iter().enumerate().filter(|(index, _)| self.is_shown(*index)) {
            let points: Vec<Point> = row
                .latency_curve
                .iter()
                .filter(|(quantile, _)| *quantile < 1.0)
                .map(|&(quantile, ns)| Point {
                    x: -(1.0 - quantile).log10(),
                    y: ns as f64,
                    spread: None,
                    words: String::new(),
                })
                .collect();
            let look = self.looks[index].clone();
            all.push(Series { contender: index, name: row.contender.clone(), look, points });
        }
        let points = || all.iter().flat_map(|series: &Series| &series.points);
        let farthest = points().map(|point| point.x).fold(0.0, f64::max);
        if farthest == 0.0 {
            return None;
        }
        let marks = [(0.0, "0"), (0.301, "50"), (1.0, "90"), (2.0, "99"), (3.0, "99.9"), (4.0, "99.99")];
        let x = Axis {
            title: "percentile".to_owned(),
            marks: marks
                .into_iter()
                .filter(|(place, _)| *place <= farthest + 1e-6)
                .map(|(place, words)| (place, words.to_owned()))
                .collect(),
            low: 0.0,
            high: farthest,
            logarithmic: false,
        };
        let y = Axis::in_factors("", points().map(|point| point.y), |value| mark_words(value / 1e3));
        let title = format!("{} · latency, µs", cell.cell);
        Some(self.drawing(&format!("latency {}", value::place(&cell.cell)), lines(&title, &x, &y, &all)))
    }

    fn ratios(&self, measure: Measure) -> Vec<Drawing> {
        let parts: Vec<&[&CellResult]> = self.cells.chunks(RATIO_COLUMNS).collect();
        let several = parts.len() > 1;
        let drawn = |(part, cells): (usize, &&[&CellResult])| {
            let rows: Vec<RatioRow> = (0..self.result.contenders.len())
                .filter(|&index| self.result.contenders[index].name != self.result.plan.reference)
                .map(|index| self.ratio_row(cells, index, measure))
                .collect();
            if rows.iter().flat_map(|row| &row.marks).all(Result::is_err) {
                return None;
            }
            let column = |cell: &&CellResult| RatioColumn {
                heading: format!("{} {}", value::place(&cell.cell), short_axis(&self.group, &cell.cell)),
                resolution: measure.resolution(cell),
            };
            let columns: Vec<RatioColumn> = cells.iter().map(column).collect();
            let heading = value::heading_of_ratios(measure, self.group.workload);
            let title = format!(
                "{heading} as a multiple of {} · {}",
                self.result.plan.reference,
                value::better(measure)
            );
            let number = if several { format!(" {}", part + 1) } else { String::new() };
            let name = format!("ratio {}{number}", measure.name(self.group.workload));
            Some(self.drawing(&name, ratio_grid(&title, &columns, &rows)))
        };
        parts.iter().enumerate().filter_map(drawn).collect()
    }

    fn ratio_row(&self, cells: &[&CellResult], index: usize, measure: Measure) -> RatioRow {
        let name = &self.result.contenders[index].name;
        let mark = |cell: &&CellResult| {
            let row = cell.rows.get(index).ok_or_else(String::new)?;
            let (ratio, verdict) = value::against_reference(row, measure);
            let ratio = ratio.ok_or_else(|| value::why_none(&row.outcome).to_owned())?;
            Ok(Mark {
                estimate: ratio.estimate,
                low: ratio.low,
                high: ratio.high,
                certain: matches!(verdict, Verdict::More | Verdict::Less),
                words: format!(
                    "{name}, {}: {} {} ({})",
                    cell.cell,
                    sign(verdict),
                    times(ratio.estimate),
                    interval(&ratio)
                ),
            })
        };
        let marks = cells.iter().map(mark).collect();
        RatioRow { contender: index, name: name.clone(), look: self.looks[index].clone(), marks }
    }
}

/// What the number at the head of a column counts.
fn short_axis(group: &Group, cell: &crate::plan::cell::Cell) -> &'static str {
    match (group.workload, group.connections, cell.connections) {
        (Workload::Disk { .. }, _, _) => "deep",
        (_, Some(_), _) => "req/s",
        (_, None, 1) => "connection",
        (_, None, _) => "connections",
    }
}

/// A number at a mark of an axis: as few digits as it needs.
fn mark_words(value: f64) -> String {
    let (value, letter) = match value {
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e3 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let text = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{letter}")
}

/// Words as the name of a file: lower-case letters, digits and hyphens.
fn file_name(words: &str) -> String {
    let mut name = String::with_capacity(words.len());
    for character in words.chars() {
        if character.is_ascii_alphanumeric() {
            name.push(character.to_ascii_lowercase());
        } else if !name.ends_with('-') {
            name.push('-');
        }
    }
    name.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_have_few_digits_and_names_of_files_no_signs() {
        assert_eq!(
            [0.0, 2.5, 20_000.0, 150_000.0, 1_500_000.0].map(mark_words),
            ["0", "2.5", "20k", "150k", "1.5M"]
        );
        assert_eq!(file_name("Echo, 128 bytes / p99 µs"), "echo-128-bytes-p99-s");
    }
}
