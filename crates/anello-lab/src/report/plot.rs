//! The plots of the HTML report, as SVG that takes its colours from the page.
//!
//! plotters writes fixed colours. The plots are drawn in colours that nobody would choose, and each of these is then
//! replaced by a CSS variable, so that one drawing serves light and dark.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::format::{count, micros, times};
use crate::result::{CellResult, LabResult, Row};
use crate::statistics::{Estimate, Ratio};
use crate::verdict::Figure;

/// Number of colours for contenders; more contenders share.
pub const SERIES_COLOURS: usize = 8;

const FOREGROUND: RGBColor = RGBColor(2, 0, 0);
const MUTED: RGBColor = RGBColor(2, 0, 1);
const GRID: RGBColor = RGBColor(2, 0, 2);
const BAND: RGBColor = RGBColor(2, 0, 3);

const PLOT_WIDTH: u32 = 500;
const LINE_PLOT_HEIGHT: u32 = 320;
const FONT: &str = "sans-serif";

/// plotters writes the size of the em box; the letters come out a fifth smaller.
const FONT_SIZE: u32 = 16;

/// Height of a row in a ratio plot.
const ROW_HEIGHT: i32 = 22;

/// Height of the heading of a group of rows, and of the axis below.
const HEADING_HEIGHT: i32 = 30;

/// Left edge of the scale in a ratio plot; names stand left of it.
const SCALE_LEFT: i32 = 146;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// The CSS variable that holds a contender's colour.
pub fn colour_variable(contender: usize) -> String {
    format!("--s{}", contender % SERIES_COLOURS)
}

/// A figure against the number of connections, one line for each contender, with the quartiles as bars.
pub fn line_plot(result: &LabResult, message_bytes: usize, figure: Figure) -> String {
    drawing(LINE_PLOT_HEIGHT, |area| draw_lines(area, result, message_bytes, figure))
}

/// The ratio to the reference with its interval, for each contender, grouped by the number of connections. The band
/// shows what two equal servers may differ by.
pub fn ratio_plot(result: &LabResult, message_bytes: usize, figure: Figure) -> String {
    let cells = cells_of(result, message_bytes);
    let rows = compared(result).len() as i32;
    let height = cells.len() as i32 * (HEADING_HEIGHT + rows * ROW_HEIGHT) + HEADING_HEIGHT + 8;
    drawing(height.unsigned_abs(), |area| draw_ratios(area, result, &cells, figure))
}

fn drawing(height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, (PLOT_WIDTH, height)).into_drawing_area();
        draw(&area).and_then(|()| area.present().map_err(Into::into))
    };
    match drawn {
        Ok(()) => themed(&svg),
        Err(error) => format!("<p class=\"note\">This plot could not be drawn: {error}.</p>"),
    }
}

/// Replaces colours by CSS variables and lets the page decide about the size.
fn themed(svg: &str) -> String {
    let mut svg = svg.replacen(&format!("width=\"{PLOT_WIDTH}\""), "role=\"img\"", 1);
    if let (Some(start), Some(end)) = (svg.find(" height=\""), svg.find(" viewBox")) {
        svg.replace_range(start..end, "");
    }
    for index in 0..SERIES_COLOURS {
        svg = svg.replace(&hex(series_colour(index)), &format!("var({})", colour_variable(index)));
    }
    for (colour, variable) in [(FOREGROUND, "--fg"), (MUTED, "--muted"), (GRID, "--grid"), (BAND, "--band")] {
        svg = svg.replace(&hex(colour), &format!("var({variable})"));
    }
    svg
}

fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

fn series_colour(index: usize) -> RGBColor {
    RGBColor(1, 0, (index % SERIES_COLOURS) as u8)
}

fn cells_of(result: &LabResult, message_bytes: usize) -> Vec<&CellResult> {
    result.cells.iter().filter(|cell| cell.cell.message_bytes == message_bytes).collect()
}

/// Indexes of the contenders that have a ratio: all but the reference.
fn compared(result: &LabResult) -> Vec<usize> {
    let others = result.contenders.iter().enumerate();
    others.filter(|(_, contender)| contender.name != result.plan.reference).map(|(index, _)| index).collect()
}

fn value_of(row: &Row, figure: Figure) -> Option<Estimate> {
    let figures = row.figures.as_ref()?;
    Some(match figure {
        Figure::Rate => figures.requests_per_second,
        Figure::Cpu => figures.cpu_ns,
    })
}

fn text_style(colour: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    (FONT, FONT_SIZE).into_font().color(&colour).pos(Pos::new(horizontal, VPos::Center))
}

fn draw_lines(area: &Area<'_>, result: &LabResult, message_bytes: usize, figure: Figure) -> Drawn {
    let cells = cells_of(result, message_bytes);
    let all = cells.iter().flat_map(|cell| &cell.rows).filter_map(|row| value_of(row, figure));
    let most = all.map(|estimate| estimate.high_quartile).fold(1.0, f64::max);
    let last = cells.len().saturating_sub(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .margin_top(10)
        .margin_right(12)
        .y_label_area_size(58)
        .margin_bottom(46)
        .build_cartesian_2d(-0.35..last + 0.35, 0.0..most * 1.06)?;
    let label = |value: &f64| match figure {
        Figure::Rate => count(*value),
        Figure::Cpu => micros(*value),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_labels(5)
        .y_max_light_lines(0)
        .y_label_formatter(&label)
        .label_style(text_style(MUTED, HPos::Right))
        .bold_line_style(GRID)
        .axis_style(GRID)
        .draw()?;
    // The twin is the reference once more; its line would only hide the other.
    let shown: Vec<usize> =
        (0..result.contenders.len()).filter(|&index| result.contenders[index].twin_of.is_none()).collect();
    for (order, &index) in shown.iter().enumerate() {
        let aside = (order as f64 - (shown.len() as f64 - 1.0) / 2.0) * 0.035;
        let colour = series_colour(index);
        let points: Vec<(f64, Estimate)> = cells
            .iter()
            .enumerate()
            .filter_map(|(place, cell)| Some((place as f64 + aside, value_of(&cell.rows[index], figure)?)))
            .collect();
        chart.draw_series(LineSeries::new(
            points.iter().map(|(place, estimate)| (*place, estimate.median)),
            colour.stroke_width(2),
        ))?;
        chart.draw_series(points.iter().map(|&(place, estimate)| {
            PathElement::new(
                vec![(place, estimate.low_quartile), (place, estimate.high_quartile)],
                colour.stroke_width(1),
            )
        }))?;
        chart.draw_series(
            points.iter().map(|&(place, estimate)| Circle::new((place, estimate.median), 4, colour.filled())),
        )?;
    }
    for (place, cell) in cells.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(place as f64, 0.0));
        let name = cell.cell.connections.to_string();
        area.draw(&Text::new(name, (x, y + 15), text_style(FOREGROUND, HPos::Center)))?;
    }
    let (x, y) = chart.backend_coord(&(last / 2.0, 0.0));
    area.draw(&Text::new("connections", (x, y + 34), text_style(MUTED, HPos::Center)))?;
    Ok(())
}

/// Maps ratios to pixels, cut at both ends.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// A scale that shows all ratios that are not far out, and 1 with room around it.
    fn of(ratios: &[Ratio]) -> Scale {
        let low = ratios.iter().map(|ratio| ratio.low).fold(0.92, f64::min).max(0.72);
        let high = ratios.iter().map(|ratio| ratio.high).fold(1.08, f64::max).min(1.36);
        let room = (high - low) * 0.04;
        Scale { low: low - room, high: high + room }
    }

    fn place(&self, ratio: f64) -> i32 {
        let width = f64::from(PLOT_WIDTH as i32 - SCALE_LEFT - 14);
        let part = ((ratio - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        SCALE_LEFT + (part * width).round() as i32
    }

    fn marks(&self) -> Vec<f64> {
        let steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
        let step = steps.into_iter().find(|step| (self.high - self.low) / step <= 7.0).unwrap_or(0.5);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|mark| mark as f64 * step).collect()
    }
}

fn draw_ratios(area: &Area<'_>, result: &LabResult, cells: &[&CellResult], figure: Figure) -> Drawn {
    let compared = compared(result);
    let ratios: Vec<Ratio> =
        cells.iter().flat_map(|cell| &cell.rows).filter_map(|row| figure.ratio(row)).collect();
    let scale = Scale::of(&ratios);
    let bottom = area.dim_in_pixel().1 as i32 - HEADING_HEIGHT - 2;
    for mark in scale.marks() {
        let x = scale.place(mark);
        area.draw(&PathElement::new(vec![(x, 4), (x, bottom)], GRID.stroke_width(1)))?;
        area.draw(&Text::new(times(mark), (x, bottom + 14), text_style(MUTED, HPos::Center)))?;
    }
    let mut y = 2;
    for cell in cells {
        let rows_bottom = y + HEADING_HEIGHT + compared.len() as i32 * ROW_HEIGHT;
        if let Some(resolution) = figure.resolution(cell) {
            let corners = [
                (scale.place(1.0 - resolution), y + HEADING_HEIGHT - 2),
                (scale.place(1.0 + resolution), rows_bottom),
            ];
            area.draw(&Rectangle::new(corners, BAND.filled()))?;
        }
        let plural = if cell.cell.connections == 1 { "" } else { "s" };
        let heading = format!("{} connection{plural}", cell.cell.connections);
        area.draw(&Text::new(heading, (4, y + HEADING_HEIGHT / 2 + 2), text_style(FOREGROUND, HPos::Left)))?;
        for (order, &index) in compared.iter().enumerate() {
            let middle = y + HEADING_HEIGHT + order as i32 * ROW_HEIGHT + ROW_HEIGHT / 2;
            draw_ratio(area, &scale, middle, index, &cell.rows[index], figure)?;
        }
        y = rows_bottom;
    }
    let one = scale.place(1.0);
    area.draw(&PathElement::new(vec![(one, 4), (one, bottom)], MUTED.stroke_width(1)))?;
    Ok(())
}

fn draw_ratio(area: &Area<'_>, scale: &Scale, middle: i32, index: usize, row: &Row, figure: Figure) -> Drawn {
    let colour = series_colour(index);
    area.draw(&Text::new(row.contender.clone(), (SCALE_LEFT - 10, middle), text_style(MUTED, HPos::Right)))?;
    let Some(ratio) = figure.ratio(row) else {
        area.draw(&Text::new(
            "not measured",
            (PLOT_WIDTH as i32 - 14, middle),
            text_style(MUTED, HPos::Right),
        ))?;
        return Ok(());
    };
    let ends = vec![(scale.place(ratio.low), middle), (scale.place(ratio.high), middle)];
    if (scale.low..=scale.high).contains(&ratio.estimate) {
        area.draw(&PathElement::new(ends, colour.stroke_width(3)))?;
    }
    if ratio.estimate > scale.high {
        let label = format!("{} →", times(ratio.estimate));
        let place = (scale.place(scale.high) - 4, middle);
        area.draw(&Text::new(label, place, text_style(FOREGROUND, HPos::Right)))?;
    } else if ratio.estimate < scale.low {
        let place = (scale.place(scale.low) + 4, middle);
        area.draw(&Text::new(
            format!("← {}", times(ratio.estimate)),
            place,
            text_style(FOREGROUND, HPos::Left),
        ))?;
    } else {
        area.draw(&Circle::new((scale.place(ratio.estimate), middle), 5, colour.filled()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_always_shows_equality_and_cuts_what_is_far_out() {
        let far = Ratio { estimate: 9.0, low: 8.0, high: 10.0 };
        let scale = Scale::of(&[far]);
        assert!(scale.low < 1.0 && scale.high < 2.0 && scale.high > 1.0);
        assert_eq!(scale.place(9.0), PLOT_WIDTH as i32 - 14);
        assert!((3..=8).contains(&scale.marks().len()));
        let narrow = Scale::of(&[]);
        assert!(narrow.marks().iter().any(|mark| (mark - 1.0).abs() < 1e-9), "{:?}", narrow.marks());
    }
}
