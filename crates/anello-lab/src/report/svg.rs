//! Charts as SVG files, in colours for a light background.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::prelude::{ChartBuilder, IntoDrawingArea, PathElement, RGBColor, SVGBackend, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontFamily, FontStyle, IntoTextStyle, TextStyle, WHITE};

use crate::report::chart::{Chart, Series};
use crate::report::format::axis_label;
use crate::report::palette::Look;

const WIDTH: i32 = 640;

const MIN_PLOT_HEIGHT: i32 = 220;

/// Minimum vertical distance between the names at the ends of the lines.
const LABEL_STEP: i32 = 14;

const CHARACTER_WIDTH: i32 = 7;

/// In a chart with more lines than this, only those of the anello contenders and the reference show their spread.
const MAX_SPREAD_SERIES: usize = 6;

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// A linear axis with the given tick marks.
struct Scale {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range.clone()).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

pub fn render(chart: &Chart, looks: &[Look]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    draw(&mut text, chart, looks).ok();
    text
}

fn draw(text: &mut String, chart: &Chart, looks: &[Look]) -> DrawResult {
    let label_width = chart.series.iter().map(|series| series.name.chars().count() as i32).max().unwrap_or(0);
    let right = label_width * CHARACTER_WIDTH + 40;
    let plot_height = MIN_PLOT_HEIGHT.max(chart.series.len() as i32 * LABEL_STEP);
    let root = SVGBackend::with_string(text, (WIDTH as u32, plot_height as u32 + 90)).into_drawing_area();
    root.fill(&WHITE)?;
    let title_style = (FontFamily::SansSerif, 14, FontStyle::Bold).into_text_style(&root);
    root.draw(&Text::new(chart.title.clone(), (8, 8), title_style))?;
    let is_logarithmic = !chart.y_marks.is_empty();
    let scale = |value: f64| if is_logarithmic { value.max(f64::MIN_POSITIVE).ln() } else { value };
    let (low, high) = (scale(chart.y_range.0), scale(chart.y_range.1));
    let y_marks = if is_logarithmic {
        chart.y_marks.iter().map(|mark| scale(*mark)).collect()
    } else {
        RangedCoordf64::from(low..high).key_points(6)
    };
    let (first, last) = chart.x.first().zip(chart.x.last()).unwrap_or((&0.0, &1.0));
    let margin = ((last - first) * 0.04).max(1e-3);
    let x_marks: Vec<f64> = chart.x_marks.iter().map(|(place, _)| *place).collect();
    let mut area = ChartBuilder::on(&root)
        .margin_top(36)
        .margin_right(right)
        .x_label_area_size(46)
        .y_label_area_size(48)
        .build_cartesian_2d(
            Scale { range: first - margin..last + margin, marks: x_marks },
            Scale { range: low..high, marks: y_marks },
        )?;
    let label = |place: &f64| {
        let mark = chart.x_marks.iter().find(|(mark, _)| mark == place);
        mark.map_or_else(String::new, |(_, label)| label.clone())
    };
    area.configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(rgb("#e8e6e1"))
        .axis_style(rgb("#dedbd4"))
        .label_style((FontFamily::SansSerif, 12, FontStyle::Normal))
        .x_desc(&chart.x_title)
        .x_label_formatter(&label)
        .y_label_formatter(&|mark| axis_label(if is_logarithmic { mark.exp() } else { *mark }))
        .draw()?;
    let mut ends: Vec<(i32, &Series)> = Vec::new();
    for series in &chart.series {
        let look = looks[series.contender];
        let colour = rgb(look.colour.0);
        let line = colour.stroke_width(if look.is_strong { 2 } else { 1 });
        let y = |value: f64| scale(value).clamp(low, high);
        let points = chart.x.iter().zip(&series.y).filter_map(|(x, value)| Some((*x, y((*value)?))));
        let points: Vec<(f64, f64)> = points.collect();
        area.draw_series([PathElement::new(points.clone(), line)])?;
        let has_spread = chart.series.len() <= MAX_SPREAD_SERIES || look.is_strong;
        let spreads = chart.x.iter().zip(&series.spread).filter(|_| has_spread);
        area.draw_series(spreads.filter_map(|(x, spread)| {
            let (from, to) = (*spread)?;
            Some(PathElement::new([(*x, y(from)), (*x, y(to))], colour))
        }))?;
        if chart.x.len() <= chart.x_marks.len() {
            let style = centred(&root, 11, FontStyle::Normal, HPos::Center).color(&colour);
            let marker = |point: &(f64, f64)| Text::new(look.marker.to_string(), *point, style.clone());
            area.draw_series(points.iter().map(marker))?;
        }
        ends.extend(points.last().map(|(_, y)| (area.backend_coord(&(*last, *y)).1, series)));
    }
    draw_labels(&root, WIDTH - right + 12, ends, 36..36 + plot_height, looks)?;
    root.present()
}

/// Draws the name of each line to the right of its end. Names do not overlap. `ends` holds the vertical positions.
fn draw_labels(
    root: &Root<'_>,
    left: i32,
    mut ends: Vec<(i32, &Series)>,
    range: Range<i32>,
    looks: &[Look],
) -> DrawResult {
    ends.sort_by_key(|(y, _)| *y);
    let sorted: Vec<i32> = ends.iter().map(|(y, _)| *y).collect();
    for (y, (_, series)) in spread_out(&sorted, range.start, range.end).into_iter().zip(&ends) {
        let look = looks[series.contender];
        let weight = if look.is_strong { FontStyle::Bold } else { FontStyle::Normal };
        let style = centred(root, 12, weight, HPos::Left);
        let colour = rgb(look.colour.0);
        let marker = style.clone().color(&colour);
        root.draw(&Text::new(look.marker.to_string(), (left, y), marker))?;
        root.draw(&Text::new(series.name.clone(), (left + 14, y), style))?;
    }
    Ok(())
}

/// Returns a text style whose anchor is at half the height of the text.
fn centred(root: &Root<'_>, size: i32, style: FontStyle, horizontal: HPos) -> TextStyle<'static> {
    let style = (FontFamily::SansSerif, size, style).into_text_style(root);
    style.pos(Pos::new(horizontal, VPos::Center))
}

/// Parses a colour of the form `#rrggbb`.
fn rgb(colour: &str) -> RGBColor {
    let part = |at: usize| {
        colour.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or(0)
    };
    RGBColor(part(1), part(3), part(5))
}

/// Moves sorted positions apart so that they are at least [`LABEL_STEP`] apart and, if possible, between `top` and
/// `bottom`.
fn spread_out(sorted: &[i32], top: i32, bottom: i32) -> Vec<i32> {
    let mut places = sorted.to_vec();
    let mut free_from = top;
    for place in &mut places {
        *place = (*place).max(free_from);
        free_from = *place + LABEL_STEP;
    }
    let mut free_to = bottom;
    for place in places.iter_mut().rev() {
        *place = (*place).min(free_to);
        free_to = *place - LABEL_STEP;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_overlap_and_stay_inside() {
        let places = spread_out(&[100; 20], 10, 10 + 20 * LABEL_STEP);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_STEP), "{places:?}");
        assert!(places[0] >= 10 && places[19] <= 10 + 20 * LABEL_STEP, "{places:?}");
    }
}
