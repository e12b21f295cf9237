//! Chart data for pages and SVG files: for each group of cells, the measures as a function of the connections, queue
//! depth or offered rate, their ratios to the reference, and the latency by percentile in each cell.

use serde::Serialize;

use crate::judge::statistics::extremes;
use crate::plan::cell::{Group, Workload};
use crate::report::format::file_name;
use crate::report::names;
use crate::result::measure::Measure;
use crate::result::{CellResult, Estimate, LabResult, Row};

/// Ratios outside this range do not extend the axis, unless at least a quarter of all ratios are below it or above it.
const RATIO_RANGE: (f64, f64) = (0.5, 2.2);

/// The axis is logarithmic if the ratio of the largest to the smallest CPU time or memory size exceeds this value.
const WIDE_RANGE: f64 = 5.0;

#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Chart {
    /// File name of the chart, without the extension.
    #[serde(skip)]
    pub name: String,
    /// Title, with the unit and a note on whether more or less is better.
    pub title: String,
    pub x_title: String,
    pub x: Vec<f64>,
    pub x_marks: Vec<(f64, String)>,
    /// Tick marks on a logarithmic vertical axis; empty for a linear axis that starts at 0.
    pub y_marks: Vec<f64>,
    pub y_range: (f64, f64),
    /// For each point in a chart of ratios, the maximum difference from 1 for identical servers; otherwise empty.
    pub floor: Vec<Option<f64>>,
    pub series: Vec<Series>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Series {
    pub contender: usize,
    pub name: String,
    pub y: Vec<Option<f64>>,
    /// Spread of each value: quartiles, or the confidence interval of a ratio.
    pub spread: Vec<Option<(f64, f64)>>,
}

pub struct GroupCharts {
    /// CPU time per request, absolute and as a ratio; for idle connections, memory.
    pub main: Vec<Chart>,
    pub others: Vec<Chart>,
    /// Latency by percentile for each cell.
    pub latencies: Vec<Chart>,
}

impl GroupCharts {
    pub fn of(result: &LabResult, group: &Group) -> GroupCharts {
        let cells = result.cells_of(group);
        let absolute: &[Measure] = match (group.workload, group.connections) {
            (Workload::Idle, _) => &[Measure::Memory],
            (_, Some(_)) => &[Measure::Cpu, Measure::P50, Measure::P99, Measure::TotalCpu],
            (_, None) => &[Measure::Cpu, Measure::Rate, Measure::TotalCpu, Measure::P99],
        };
        let compared = result.measures_of(group);
        let charts = |is_main: bool| -> Vec<Chart> {
            let is_in = |of: &&Measure| matches!(of, Measure::Cpu | Measure::Memory) == is_main;
            let figures = absolute.iter().filter(is_in).filter_map(|of| figures(result, group, &cells, *of));
            let ratios = compared.iter().filter(is_in).filter_map(|of| ratios(result, group, &cells, *of));
            figures.chain(ratios).collect()
        };
        let latencies = cells.iter().filter_map(|cell| latency(result, group, cell)).collect();
        GroupCharts { main: charts(true), others: charts(false), latencies }
    }
}

/// Returns a chart of the cells in a group, without lines. The horizontal positions are cell indices or offered rates.
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
        ..Chart::default()
    }
}

/// Returns one line for each contender that has at least one point. `point` returns a value with its spread.
fn series(
    result: &LabResult,
    cells: &[&CellResult],
    point: impl Fn(usize, &Row) -> Option<(f64, Option<(f64, f64)>)>,
) -> Vec<Series> {
    let lines = names::originals(result).map(|(contender, record)| {
        let points = cells.iter().map(|cell| point(contender, cell.rows.get(contender)?));
        let (y, spread) = points.map(|point| (point.map(|of| of.0), point.and_then(|of| of.1))).unzip();
        Series { contender, name: record.name.clone(), y, spread }
    });
    lines.filter(|line| line.y.iter().any(Option::is_some)).collect()
}

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

fn ratios(result: &LabResult, group: &Group, cells: &[&CellResult], measure: Measure) -> Option<Chart> {
    let reference = &result.plan.reference;
    let heading = names::heading(measure, group.workload);
    let heading = heading.split(',').next().unwrap_or_default();
    let title = format!("{heading}, × {reference} · {}", names::better(measure));
    let mut chart = chart_of(group, cells, &format!("ratio {}", measure.name(group.workload)), title);
    chart.floor = cells.iter().map(|cell| measure.resolution(cell)).collect();
    chart.series = series(result, cells, |contender, row| {
        if result.contenders[contender].name == *reference {
            return row.figure(measure).map(|_| (1.0, None));
        }
        let ratio = row.comparison.ratio(measure)?;
        Some((ratio.estimate, Some((ratio.low, ratio.high))))
    });
    let has_ratio = chart.series.iter().flat_map(|series| &series.spread).any(Option::is_some);
    let values: Vec<f64> = chart.series.iter().flat_map(|series| &series.y).flatten().copied().collect();
    let estimate = Estimate::of(&values).filter(|_| has_ratio)?;
    let limits = (RATIO_RANGE.0.min(estimate.low_quartile), RATIO_RANGE.1.max(estimate.high_quartile));
    let (low, high) = range(&chart.series)?;
    chart.y_range = (low.max(limits.0).min(0.95) / 1.03, high.min(limits.1).max(1.05) * 1.03);
    chart.y_marks = vec![0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0];
    chart.y_marks.retain(|mark| (chart.y_range.0..=chart.y_range.1).contains(mark));
    if limits != RATIO_RANGE {
        chart.y_marks = logarithmic_marks(chart.y_range.0, chart.y_range.1);
    }
    Some(chart)
}

/// Returns the chart of the latency by percentile in one cell, for all contenders. Higher percentiles are further to
/// the right.
fn latency(result: &LabResult, group: &Group, cell: &CellResult) -> Option<Chart> {
    let rows = || names::originals(result).filter_map(|(index, _)| Some((index, cell.rows.get(index)?)));
    let curves = rows().flat_map(|(_, row)| &row.latency_curve);
    let mut quantiles: Vec<f64> = curves.map(|(quantile, _)| *quantile).filter(|of| *of < 1.0).collect();
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

/// Sets the vertical axis of a chart. Returns `None` if the chart has no points.
fn scaled(mut chart: Chart, is_logarithmic: bool) -> Option<Chart> {
    let (low, high) = range(&chart.series)?;
    chart.y_range = (0.0, high.max(f64::MIN_POSITIVE) * 1.05);
    if is_logarithmic {
        chart.y_range = (low / 1.15, high * 1.15);
        chart.y_marks = logarithmic_marks(chart.y_range.0, chart.y_range.1);
    }
    Some(chart)
}

/// Returns the smallest and the largest positive value. `None` if no value is positive.
fn range(series: &[Series]) -> Option<(f64, f64)> {
    let values = series.iter().flat_map(|series| &series.y).flatten().copied();
    extremes(values.filter(|value| value.is_finite() && *value > 0.0))
}

/// Returns the powers of ten and, if there is room, two and five times each power.
fn logarithmic_marks(low: f64, high: f64) -> Vec<f64> {
    let digits: &[f64] = if high / low < 1e3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let marks = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
    marks.filter(|mark| (low..=high).contains(mark)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_include_all_values_and_are_finite() {
        assert_eq!(logarithmic_marks(0.9, 25.0), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(logarithmic_marks(0.9, 2_500.0), [1.0, 10.0, 100.0, 1000.0]);
        let scaled = |y: [f64; 2], is_logarithmic: bool| {
            let series = Series { y: y.map(Some).to_vec(), ..Series::default() };
            scaled(Chart { series: vec![series], ..Chart::default() }, is_logarithmic)
        };
        assert_eq!(scaled([20.0, 100.0], false).unwrap().y_range, (0.0, 105.0));
        for y in [[0.0, -1.0], [f64::NAN, f64::INFINITY]] {
            assert_eq!((scaled(y, false), scaled(y, true)), (None, None));
        }
    }
}
