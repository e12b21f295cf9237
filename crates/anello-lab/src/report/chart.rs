//! Chart data for pages and SVG files.
//!
//! | group | charts |
//! |---|---|
//! | closed loop, disk | rate, CPU and p99 latency by connections or queue depth |
//! | offered rate | median and p99 latency and CPU by offered rate |
//! | idle | memory by connections |
//!
//! Each group also has charts of the ratios to the reference for each compared measure, and of the latency by
//! percentile in each cell.

use serde::Serialize;

use crate::judge::statistics::quantile;
use crate::plan::cell::{Group, Workload};
use crate::report::format::file_name;
use crate::report::names;
use crate::result::measure::Measure;
use crate::result::{CellResult, LabResult, Row};

/// Ratios outside this range do not extend the axis, unless a quarter of all ratios is outside.
const RATIO_RANGE: (f64, f64) = (0.5, 2.2);

/// Ratio of the largest to the smallest CPU time or memory above which the axis is logarithmic.
const WIDE_RANGE: f64 = 5.0;

/// A line chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// Name of its file, without the extension.
    #[serde(skip)]
    pub name: String,
    /// Title, with the unit and a note on whether more or less is better.
    pub title: String,
    /// Quantity on the horizontal axis.
    pub x_title: String,
    /// Positions of the points.
    pub x: Vec<f64>,
    /// Positions and labels of the tick marks on the horizontal axis.
    pub x_marks: Vec<(f64, String)>,
    /// Tick marks on a logarithmic vertical axis; empty for a linear axis that starts at 0.
    pub y_marks: Vec<f64>,
    /// Lower and upper end of the vertical axis.
    pub y_range: (f64, f64),
    /// For each point, the maximum difference from 1 for identical servers. Only for ratios.
    pub floor: Vec<Option<f64>>,
    /// Lines, one for each contender that has points.
    pub series: Vec<Series>,
}

/// A line in a chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Index of the contender.
    pub contender: usize,
    /// Name of the contender.
    pub name: String,
    /// Values at the positions in the chart.
    pub y: Vec<Option<f64>>,
    /// Spread of each value: quartiles, or the confidence interval of a ratio.
    pub spread: Vec<Option<(f64, f64)>>,
}

/// A value with its spread.
type Point = (f64, Option<(f64, f64)>);

/// Charts for one group of cells.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupCharts {
    /// CPU time per request, absolute and as a ratio; for idle connections, memory.
    pub main: Vec<Chart>,
    /// Other measures.
    pub others: Vec<Chart>,
    /// Latency by percentile for each cell.
    pub latencies: Vec<Chart>,
}

impl GroupCharts {
    /// Returns the charts for a group.
    pub fn of(result: &LabResult, group: &Group) -> GroupCharts {
        let cells = result.cells_of(group);
        let absolute: &[Measure] = match (group.workload, group.connections) {
            (Workload::Idle, _) => &[Measure::Memory],
            (_, Some(_)) => &[Measure::Cpu, Measure::P50, Measure::P99, Measure::TotalCpu],
            (_, None) => &[Measure::Cpu, Measure::Rate, Measure::TotalCpu, Measure::P99],
        };
        let compared = cells.first().map_or(&[][..], |cell| Measure::of_cell(&cell.cell));
        let is_main = |measure: Measure| matches!(measure, Measure::Cpu | Measure::Memory);
        let charts = |main: bool| -> Vec<Chart> {
            let of_measure = |measures: &[Measure]| {
                measures.iter().copied().filter(|of| is_main(*of) == main).collect::<Vec<_>>()
            };
            let absolute = of_measure(absolute)
                .into_iter()
                .filter_map(|measure| figures(result, group, &cells, measure));
            absolute
                .chain(
                    of_measure(compared)
                        .into_iter()
                        .filter_map(|measure| ratios(result, group, &cells, measure)),
                )
                .collect()
        };
        let latencies = cells.iter().filter_map(|cell| latency(result, group, cell)).collect();
        GroupCharts { main: charts(true), others: charts(false), latencies }
    }

    /// Returns all charts.
    pub fn all(&self) -> impl Iterator<Item = &Chart> {
        self.main.iter().chain(&self.others).chain(&self.latencies)
    }
}

/// Returns an empty chart over the cells of a group. Positions are ordinal numbers or offered rates.
fn chart_of(group: &Group, cells: &[&CellResult], name: &str, title: String) -> Chart {
    let is_rated = group.connections.is_some();
    let position =
        |(index, cell): (usize, &&CellResult)| if is_rated { cell.cell.position() } else { index as f64 };
    let x: Vec<f64> = cells.iter().enumerate().map(position).collect();
    let labels = cells.iter().map(|cell| names::position(&cell.cell));
    Chart {
        name: file_name(&format!("{} {name}", names::group_title(group))),
        title,
        x_title: names::axis_title(group).to_owned(),
        x_marks: x.iter().copied().zip(labels).collect(),
        x,
        y_marks: Vec::new(),
        y_range: (0.0, 1.0),
        floor: Vec::new(),
        series: Vec::new(),
    }
}

/// Returns the lines of all contenders with at least one point.
fn series(
    result: &LabResult,
    cells: &[&CellResult],
    point: impl Fn(usize, &Row) -> Option<Point>,
) -> Vec<Series> {
    let line = |(contender, name): (usize, &str)| {
        let points: Vec<Option<Point>> =
            cells.iter().map(|cell| point(contender, cell.rows.get(contender)?)).collect();
        Series {
            contender,
            name: name.to_owned(),
            y: points.iter().map(|point| point.map(|(y, _)| y)).collect(),
            spread: points.into_iter().map(|point| point.and_then(|(_, spread)| spread)).collect(),
        }
    };
    let lines = names::originals(result).map(|(index, contender)| line((index, &contender.name)));
    lines.filter(|line| line.y.iter().any(Option::is_some)).collect()
}

/// Returns the chart of a measure over the quantity in which the cells differ.
fn figures(result: &LabResult, group: &Group, cells: &[&CellResult], measure: Measure) -> Option<Chart> {
    let unit = match measure {
        Measure::Rate => 1.0,
        Measure::Memory => 1024.0,
        Measure::Cpu | Measure::P50 | Measure::P99 | Measure::TotalCpu => 1e3,
    };
    let unit_title = if measure == Measure::Memory { ", KiB" } else { "" };
    let title =
        format!("{}{unit_title} · {}", names::heading(measure, group.workload), names::better(measure));
    let chart = chart_of(group, cells, measure.name(group.workload), title);
    let series = series(result, cells, |_, row| {
        let figure = row.figure(measure)?;
        Some((figure.median / unit, Some((figure.low_quartile / unit, figure.high_quartile / unit))))
    });
    // Between idle and overload, latency changes by orders of magnitude. So does the CPU time of some servers.
    let is_wide = range(&series).is_some_and(|(low, high)| high > WIDE_RANGE * low);
    let is_logarithmic =
        matches!(measure, Measure::P50 | Measure::P99) || measure != Measure::Rate && is_wide;
    scaled(Chart { series, ..chart }, is_logarithmic)
}

/// Returns the chart of the ratio to the reference over the quantity in which the cells differ.
fn ratios(result: &LabResult, group: &Group, cells: &[&CellResult], measure: Measure) -> Option<Chart> {
    let reference = &result.plan.reference;
    let mut heading = names::heading(measure, group.workload);
    heading.truncate(heading.find(',').unwrap_or(heading.len()));
    let title = format!("{heading}, × {reference} · {}", names::better(measure));
    let mut chart = chart_of(group, cells, &format!("ratio {}", measure.name(group.workload)), title);
    chart.floor = cells.iter().map(|cell| measure.resolution(cell)).collect();
    chart.series = series(result, cells, |contender, row| {
        if result.contenders[contender].name == *reference {
            return row.figure(measure).map(|_| (1.0, None));
        }
        let ratio = measure.ratio(row)?;
        Some((ratio.estimate, Some((ratio.low, ratio.high))))
    });
    let has_ratio = chart.series.iter().flat_map(|series| &series.spread).any(Option::is_some);
    let values: Vec<f64> =
        chart.series.iter().flat_map(|series| series.y.iter().flatten().copied()).collect();
    let quartiles = quantile(&values, 0.25).zip(quantile(&values, 0.75)).filter(|_| has_ratio)?;
    let limits = (RATIO_RANGE.0.min(quartiles.0), RATIO_RANGE.1.max(quartiles.1));
    let (low, high) = range(&chart.series)?;
    chart.y_range = (low.max(limits.0).min(0.95) / 1.03, high.min(limits.1).max(1.05) * 1.03);
    chart.y_marks = vec![0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0];
    chart.y_marks.retain(|mark| (chart.y_range.0..=chart.y_range.1).contains(mark));
    if limits != RATIO_RANGE {
        chart.y_marks = logarithmic_marks(chart.y_range);
    }
    Some(chart)
}

/// Returns the chart of the latency by percentile in one cell, for all contenders. Rarer latencies are farther right.
fn latency(result: &LabResult, group: &Group, cell: &CellResult) -> Option<Chart> {
    let rows = || names::originals(result).filter_map(|(index, _)| Some((index, cell.rows.get(index)?)));
    let mut quantiles: Vec<f64> =
        rows().flat_map(|(_, row)| &row.latency_curve).map(|(quantile, _)| *quantile).collect();
    quantiles.retain(|quantile| *quantile < 1.0);
    quantiles.sort_by(f64::total_cmp);
    quantiles.dedup();
    let place = |quantile: f64| -(1.0 - quantile).log10();
    let last = place(*quantiles.last()?);
    let y = |row: &Row, quantile: f64| {
        let point = row.latency_curve.iter().find(|(of, _)| *of == quantile)?;
        Some(point.1 as f64 / 1e3)
    };
    let series = rows().filter(|(_, row)| !row.latency_curve.is_empty()).map(|(contender, row)| Series {
        contender,
        name: row.contender.clone(),
        y: quantiles.iter().map(|quantile| y(row, *quantile)).collect(),
        spread: Vec::new(),
    });
    let marks = [(0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99")];
    let marks = marks.map(|(quantile, label)| (place(quantile), label.to_owned())).into_iter();
    let title = format!("{} · latency, µs", cell.cell);
    let chart = Chart {
        x_title: "percentile".to_owned(),
        x: quantiles.iter().map(|quantile| place(*quantile)).collect(),
        x_marks: marks.filter(|(place, _)| *place <= last + 1e-6).collect(),
        series: series.collect(),
        ..chart_of(group, &[], &format!("latency {}", names::position(&cell.cell)), title)
    };
    scaled(chart, true)
}

/// Sets the vertical axis of a chart. `None` if the chart has no points.
fn scaled(mut chart: Chart, is_logarithmic: bool) -> Option<Chart> {
    let (low, high) = range(&chart.series)?;
    chart.y_range = (0.0, high.max(f64::MIN_POSITIVE) * 1.05);
    if is_logarithmic {
        chart.y_range = (low / 1.15, high * 1.15);
        chart.y_marks = logarithmic_marks(chart.y_range);
    }
    Some(chart)
}

/// Returns the smallest and the largest positive value. `None` if there is none.
fn range(series: &[Series]) -> Option<(f64, f64)> {
    let values = series.iter().flat_map(|series| series.y.iter().flatten());
    let values = values.copied().filter(|value| value.is_finite() && *value > 0.0);
    values.map(|value| (value, value)).reduce(|(low, high), (value, _)| (low.min(value), high.max(value)))
}

/// Returns the powers of ten, with their multiples of 2 and 5 if there is room.
fn logarithmic_marks((low, high): (f64, f64)) -> Vec<f64> {
    let digits: &[f64] = if high / low < 1e3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let marks = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
    marks.filter(|mark| (low..=high).contains(mark)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(y: &[f64]) -> Chart {
        let group = crate::plan::cell::Cell::echo(1, 1).group();
        let series = Series {
            contender: 0,
            name: String::new(),
            y: y.iter().copied().map(Some).collect(),
            spread: Vec::new(),
        };
        Chart { series: vec![series], ..chart_of(&group, &[], "", String::new()) }
    }

    #[test]
    fn axes_include_all_values_and_are_finite() {
        assert_eq!(logarithmic_marks((0.9, 25.0)), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(logarithmic_marks((0.9, 2_500.0)), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(scaled(chart(&[20.0, 100.0]), false).unwrap().y_range, (0.0, 105.0));
        for y in [[0.0, -1.0], [f64::NAN, f64::INFINITY]] {
            assert_eq!((scaled(chart(&y), false), scaled(chart(&y), true)), (None, None));
        }
    }
}
