//! The charts: lines over an axis, bars, and the grid of ratios with their intervals.
//!
//! They know nothing of runs and cells; what they show is handed to them as series of points. Every line ends in its
//! name, so that no chart needs a legend to be read:
//!
//! ```text
//!   requests/s
//!   100k ┤      ___●───●──  anello io_uring
//!        │   ●─/  ──■───■─  tokio
//!    50k ┤  /  ■─/
//!        └──┬─────┬─────┬─
//!           1    50    300
//! ```

use crate::report::palette::Look;
use crate::report::svg::{Anchor, Svg, Weight, width_of};

/// Width of a chart in units of its own; the page scales it.
const WIDTH: f64 = 520.0;

/// Least height of the space for the lines.
const LEAST_PLOT_HEIGHT: f64 = 210.0;

/// Distance between the names at the ends of the lines.
const LABEL_STEP: f64 = 13.5;

/// Height of the line that holds the title.
const TITLE_HEIGHT: f64 = 26.0;

const LEFT: f64 = 50.0;
const BELOW: f64 = 42.0;

/// With more lines than this, only those that stand out show their quartiles.
const FEW_SERIES: usize = 6;

/// One point of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Place on the horizontal axis.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Where its spread begins and ends.
    pub spread: Option<(f64, f64)>,
    /// What shows when one points at it.
    pub words: String,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Index of the contender.
    pub contender: usize,
    /// Its name.
    pub name: String,
    /// Its look.
    pub look: Look,
    /// From left to right.
    pub points: Vec<Point>,
}

/// One axis: what it means and where its marks stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Words below a horizontal axis; a vertical one is explained by the title of the chart.
    pub title: String,
    /// Place and words of each mark.
    pub marks: Vec<(f64, String)>,
    /// Where it begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// Whether equal distances mean equal factors.
    pub logarithmic: bool,
}

impl Axis {
    /// Names in equal distances, whatever numbers they stand for.
    pub fn of_names(title: &str, names: &[String]) -> Axis {
        let last = names.len().saturating_sub(1) as f64;
        Axis {
            title: title.to_owned(),
            marks: names.iter().enumerate().map(|(place, name)| (place as f64, name.clone())).collect(),
            low: -0.25,
            high: last + 0.15,
            logarithmic: false,
        }
    }

    /// From 0 to a little above the largest value, with about five round marks.
    pub fn from_zero(title: &str, most: f64, words: fn(f64) -> String) -> Axis {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let step = round_step(most / 4.5);
        let marks = (0..).map(|index| f64::from(index) * step).take_while(|&mark| mark <= most * 1.04);
        Axis {
            title: title.to_owned(),
            marks: marks.map(|mark| (mark, words(mark))).collect(),
            low: 0.0,
            high: most * 1.05,
            logarithmic: false,
        }
    }

    /// Over all the values, in equal factors, marked at 1, 2 and 5 of every power of ten (or fewer if that is a lot).
    pub fn in_factors(title: &str, values: impl Iterator<Item = f64>, words: fn(f64) -> String) -> Axis {
        let mut range: Option<(f64, f64)> = None;
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            let (low, high) = range.unwrap_or((value, value));
            range = Some((low.min(value), high.max(value)));
        }
        let (low, high) = range.unwrap_or((1.0, 10.0));
        let (low, high) = (low / 1.15, high * 1.15);
        let decades = high.log10() - low.log10();
        let digits: &[f64] = if decades < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let marks = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
        let marks = marks.filter(|mark| (low..=high).contains(mark)).map(|mark| (mark, words(mark)));
        Axis { title: title.to_owned(), marks: marks.collect(), low, high, logarithmic: true }
    }

    /// Where a value stands between 0 (the low end) and 1.
    fn part(&self, value: f64) -> f64 {
        let (low, high, value) = if self.logarithmic {
            (self.low.ln(), self.high.ln(), value.max(f64::MIN_POSITIVE).ln())
        } else {
            (self.low, self.high, value)
        };
        if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 }
    }
}

/// The next step of 1, 2, 2.5 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|&step| step >= least)
        .unwrap_or(power)
}

/// Draws the lines, each with its name at its end.
pub fn lines(title: &str, x: &Axis, y: &Axis, series: &[Series]) -> String {
    let shown: Vec<&Series> = series.iter().filter(|series| !series.points.is_empty()).collect();
    let longest = shown.iter().map(|series| width_of(&series.name)).fold(40.0, f64::max);
    let right = longest + 34.0;
    let plot_height = LEAST_PLOT_HEIGHT.max(shown.len() as f64 * LABEL_STEP);
    let mut svg = Svg::new(WIDTH, TITLE_HEIGHT + 6.0 + plot_height + BELOW);
    let area = Area { left: LEFT, top: TITLE_HEIGHT + 6.0, width: WIDTH - LEFT - right, height: plot_height };
    draw_title(&mut svg, title);
    draw_axes(&mut svg, &area, x, y);
    let labels = label_places(&area, y, &shown);
    // Those that stand out are drawn last, on top.
    for strong in [false, true] {
        for (series, &label_y) in shown.iter().zip(&labels).filter(|(series, _)| series.look.strong == strong)
        {
            draw_series(&mut svg, &area, x, y, series, label_y, shown.len() <= FEW_SERIES);
        }
    }
    svg.finish(title)
}

fn draw_title(svg: &mut Svg, title: &str) {
    svg.text((2.0, 9.0), Anchor::Start, "fg", Weight::Bold, title);
}

struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Area {
    fn right(&self) -> f64 {
        self.left + self.width
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }

    fn place(&self, x: &Axis, y: &Axis, at: (f64, f64)) -> (f64, f64) {
        (self.left + x.part(at.0) * self.width, self.bottom() - y.part(at.1) * self.height)
    }
}

fn draw_axes(svg: &mut Svg, area: &Area, x: &Axis, y: &Axis) {
    for (value, words) in &y.marks {
        let at = area.bottom() - y.part(*value) * area.height;
        svg.line((area.left, at), (area.right(), at), "grid", 1.0);
        svg.text((area.left - 6.0, at), Anchor::End, "muted", Weight::Plain, words);
    }
    svg.line((area.left, area.bottom()), (area.right(), area.bottom()), "line", 1.0);
    let mut free_from = f64::NEG_INFINITY;
    for (value, words) in &x.marks {
        let at = area.left + x.part(*value) * area.width;
        svg.line((at, area.bottom()), (at, area.bottom() + 4.0), "line", 1.0);
        // Words that would run into their neighbours are left out; the mark stays.
        let half = width_of(words) / 2.0 + 2.0;
        if at - half >= free_from {
            svg.text((at, area.bottom() + 13.0), Anchor::Middle, "fg", Weight::Plain, words);
            free_from = at + half;
        }
    }
    let middle = area.left + area.width / 2.0;
    svg.text((middle, area.bottom() + 31.0), Anchor::Middle, "muted", Weight::Plain, &x.title);
}

/// Heights for the names: each as near to the end of its line as the others leave room.
fn label_places(area: &Area, y: &Axis, shown: &[&Series]) -> Vec<f64> {
    let wanted = |series: &Series| {
        let last = series.points.last().map_or(y.low, |point| point.y);
        area.bottom() - y.part(last) * area.height
    };
    let mut order: Vec<(usize, f64)> =
        shown.iter().enumerate().map(|(index, series)| (index, wanted(series))).collect();
    order.sort_by(|left, right| left.1.total_cmp(&right.1));
    // Down so that none overlaps the one above, then up from the bottom so that all stay inside.
    let mut free_from = area.top;
    for (_, at) in &mut order {
        *at = at.max(free_from);
        free_from = *at + LABEL_STEP;
    }
    let mut free_to = area.bottom();
    for (_, at) in order.iter_mut().rev() {
        *at = at.min(free_to);
        free_to = *at - LABEL_STEP;
    }
    let mut places = vec![0.0; shown.len()];
    for (index, at) in order {
        places[index] = at;
    }
    places
}

fn draw_series(
    svg: &mut Svg,
    area: &Area,
    x: &Axis,
    y: &Axis,
    series: &Series,
    label_y: f64,
    all_spreads: bool,
) {
    let look = &series.look;
    svg.begin_contender(series.contender);
    let places: Vec<(f64, f64)> =
        series.points.iter().map(|point| area.place(x, y, (point.x, point.y))).collect();
    svg.curve(&places, look);
    for (point, &(at_x, at_y)) in series.points.iter().zip(&places) {
        if let Some((low, high)) = point.spread.filter(|_| all_spreads || look.strong) {
            let (low, high) = (area.place(x, y, (point.x, low)), area.place(x, y, (point.x, high)));
            svg.line((at_x, low.1), (at_x, high.1), &look.colour, 1.0);
        }
        // A long curve has too many points to mark; its words hang on the few that have some.
        if !point.words.is_empty() {
            svg.marker((at_x, at_y), look, if look.strong { 3.6 } else { 2.8 }, &point.words);
        }
    }
    if let Some(&(end_x, end_y)) = places.last() {
        let label_x = area.right() + 14.0;
        // From a line that ends early the eye would have to cross all the others.
        if end_x > area.right() - 40.0 {
            svg.line((end_x + 4.0, end_y), (label_x - 3.0, label_y), "line", 0.8);
        }
        svg.marker((label_x + 3.0, label_y), look, 3.2, "");
        let weight = if look.strong { Weight::Bold } else { Weight::Plain };
        svg.text((label_x + 11.0, label_y), Anchor::Start, "fg", weight, &series.name);
    }
    svg.end();
}

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Index of the contender.
    pub contender: usize,
    /// Its name.
    pub name: String,
    /// Its look.
    pub look: Look,
    /// The value, with its words, and its spread; none if there is nothing to show, with the reason as words.
    pub value: Option<(f64, Option<(f64, f64)>)>,
    /// Words at the end of the bar.
    pub words: String,
}

/// Draws horizontal bars from 0.
pub fn bars(title: &str, axis: &Axis, bars: &[Bar]) -> String {
    const ROW: f64 = 22.0;
    let longest = bars.iter().map(|bar| width_of(&bar.name)).fold(40.0, f64::max);
    let words = bars.iter().map(|bar| width_of(&bar.words)).fold(30.0, f64::max);
    let (left, right) = (longest + 12.0, words + 14.0);
    let width = (WIDTH - left - right).max(80.0);
    let bottom = TITLE_HEIGHT + bars.len() as f64 * ROW + 6.0;
    let mut svg = Svg::new(left + width + right, bottom + BELOW);
    draw_title(&mut svg, title);
    for (value, words) in &axis.marks {
        let at = left + axis.part(*value) * width;
        svg.line((at, TITLE_HEIGHT), (at, bottom), "grid", 1.0);
        svg.text((at, bottom + 12.0), Anchor::Middle, "muted", Weight::Plain, words);
    }
    svg.text((left + width / 2.0, bottom + 30.0), Anchor::Middle, "muted", Weight::Plain, &axis.title);
    for (row, bar) in bars.iter().enumerate() {
        let middle = TITLE_HEIGHT + row as f64 * ROW + ROW / 2.0;
        svg.begin_contender(bar.contender);
        let weight = if bar.look.strong { Weight::Bold } else { Weight::Plain };
        svg.text((left - 8.0, middle), Anchor::End, "fg", weight, &bar.name);
        let end = bar.value.map_or(0.0, |(value, _)| axis.part(value) * width);
        if let Some((_, spread)) = bar.value {
            svg.rectangle((left, middle - 7.0), (end.max(1.0), 14.0), &bar.look.colour);
            if let Some((low, high)) = spread {
                let (low, high) = (left + axis.part(low) * width, left + axis.part(high) * width);
                svg.line((low, middle), (high, middle), "muted", 2.0);
            }
        }
        let colour = if bar.value.is_some() { "fg" } else { "muted" };
        svg.text((left + end + 7.0, middle), Anchor::Start, colour, Weight::Plain, &bar.words);
        svg.end();
    }
    svg.finish(title)
}

/// One ratio in the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The estimate.
    pub estimate: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end of its interval.
    pub high: f64,
    /// Whether it differs from 1 beyond doubt.
    pub certain: bool,
    /// What shows when one points at it.
    pub words: String,
}

/// One row of the grid of ratios: a contender, with a mark or the reason for none in each column.
#[derive(Debug, Clone, PartialEq)]
pub struct RatioRow {
    /// Index of the contender.
    pub contender: usize,
    /// Its name.
    pub name: String,
    /// Its look.
    pub look: Look,
    /// One for each column.
    pub marks: Vec<Result<Mark, String>>,
}

/// A column of the grid: its heading, and the band in which equal servers lie.
#[derive(Debug, Clone, PartialEq)]
pub struct RatioColumn {
    /// Its heading.
    pub heading: String,
    /// How far from 1 two equal servers may lie.
    pub resolution: Option<f64>,
}

const RATIO_COLUMN: f64 = 142.0;
const RATIO_ROW: f64 = 19.0;

/// Draws ratios as points with intervals: a row for each contender, a column for each cell, all on one scale.
pub fn ratio_grid(title: &str, columns: &[RatioColumn], rows: &[RatioRow]) -> String {
    let longest = rows.iter().map(|row| width_of(&row.name)).fold(60.0, f64::max);
    let left = longest + 14.0;
    let top = TITLE_HEIGHT + 24.0;
    let bottom = top + rows.len() as f64 * RATIO_ROW;
    let mut svg = Svg::new(left + columns.len() as f64 * RATIO_COLUMN + 4.0, bottom + 20.0);
    draw_title(&mut svg, title);
    let scale = RatioScale::of(rows.iter().flat_map(|row| &row.marks).filter_map(|mark| mark.as_ref().ok()));
    for (index, column) in columns.iter().enumerate() {
        let from = left + index as f64 * RATIO_COLUMN;
        draw_ratio_column(&mut svg, &scale, column, from, bottom);
    }
    for (index, row) in rows.iter().enumerate() {
        let middle = top + index as f64 * RATIO_ROW + RATIO_ROW / 2.0;
        svg.begin_contender(row.contender);
        let weight = if row.look.strong { Weight::Bold } else { Weight::Plain };
        svg.text((left - 8.0, middle), Anchor::End, "fg", weight, &row.name);
        for (column, mark) in row.marks.iter().enumerate() {
            let from = left + column as f64 * RATIO_COLUMN;
            match mark {
                Ok(mark) => draw_mark(&mut svg, &scale, mark, &row.look, (from, middle)),
                Err(why) => {
                    let at = (from + RATIO_COLUMN / 2.0, middle);
                    svg.text(at, Anchor::Middle, "muted", Weight::Plain, why);
                }
            }
        }
        svg.end();
    }
    svg.finish(title)
}

fn draw_ratio_column(svg: &mut Svg, scale: &RatioScale, column: &RatioColumn, from: f64, bottom: f64) {
    let top = TITLE_HEIGHT + 22.0;
    let middle = from + RATIO_COLUMN / 2.0;
    svg.text((middle, TITLE_HEIGHT + 9.0), Anchor::Middle, "fg", Weight::Bold, &column.heading);
    if let Some(resolution) = column.resolution {
        let (low, high) = (scale.place(1.0 - resolution), scale.place(1.0 + resolution));
        svg.rectangle((from + low, top), (high - low, bottom - top), "band");
    }
    for mark in scale.marks() {
        let at = from + scale.place(mark);
        let colour = if (mark - 1.0).abs() < 1e-9 { "muted" } else { "grid" };
        svg.line((at, top), (at, bottom), colour, 1.0);
        svg.text((at, bottom + 10.0), Anchor::Middle, "muted", Weight::Plain, &plain_ratio(mark));
    }
}

fn draw_mark(svg: &mut Svg, scale: &RatioScale, mark: &Mark, look: &Look, (from, middle): (f64, f64)) {
    let text = |svg: &mut Svg, at: f64, anchor: Anchor, words: &str| {
        svg.text((at, middle), anchor, "fg", Weight::Plain, words);
    };
    if mark.estimate > scale.high {
        let words = format!("{} →", plain_ratio(mark.estimate));
        text(svg, from + scale.place(scale.high) + 2.0, Anchor::End, &words);
    } else if mark.estimate < scale.low {
        text(
            svg,
            from + scale.place(scale.low) - 2.0,
            Anchor::Start,
            &format!("← {}", plain_ratio(mark.estimate)),
        );
    } else {
        let ends = (from + scale.place(mark.low), from + scale.place(mark.high));
        svg.line((ends.0, middle), (ends.1, middle), &look.colour, 2.0);
        let radius = if mark.certain { 4.0 } else { 2.6 };
        svg.marker((from + scale.place(mark.estimate), middle), look, radius, &mark.words);
    }
}

fn plain_ratio(ratio: f64) -> String {
    if ratio >= 9.95 {
        format!("{ratio:.0}")
    } else {
        format!("{ratio:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// Maps ratios to places within a column, in equal factors, cut at both ends.
struct RatioScale {
    low: f64,
    high: f64,
}

impl RatioScale {
    /// A scale that shows all ratios that are not far out, and 1 with room around it.
    fn of<'a>(marks: impl Iterator<Item = &'a Mark>) -> RatioScale {
        let (mut low, mut high) = (0.93f64, 1.07f64);
        for mark in marks {
            low = low.min(mark.low.max(0.6));
            high = high.max(mark.high.min(1.75));
        }
        RatioScale { low: low / 1.01, high: high * 1.01 }
    }

    fn place(&self, ratio: f64) -> f64 {
        let part = (ratio.max(1e-9).ln() - self.low.ln()) / (self.high.ln() - self.low.ln());
        8.0 + part.clamp(0.0, 1.0) * (RATIO_COLUMN - 16.0)
    }

    /// Three to five marks, 1 among them.
    fn marks(&self) -> Vec<f64> {
        let steps = [0.02, 0.05, 0.1, 0.2, 0.25, 0.5];
        let step = steps.into_iter().find(|step| (self.high - self.low) / step <= 4.6).unwrap_or(0.5);
        let (below, above) = (((1.0 - self.low) / step) as i32, ((self.high - 1.0) / step) as i32);
        (-below..=above).map(|index| 1.0 + f64::from(index) * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::contender::Role;
    use crate::report::palette::Marker;

    fn look(strong: bool) -> Look {
        Look { role: Role::Peer, colour: "peer-0".to_owned(), dash: "", marker: Marker::Circle, strong }
    }

    fn series(contender: usize, values: &[f64]) -> Series {
        let point = |(x, &y): (usize, &f64)| Point { x: x as f64, y, spread: None, words: y.to_string() };
        Series {
            contender,
            name: format!("server {contender}"),
            look: look(contender == 0),
            points: values.iter().enumerate().map(point).collect(),
        }
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([0.9, 1.1, 2.1, 30.0, 230.0].map(round_step), [1.0, 2.0, 2.5, 50.0, 250.0]);
        let axis = Axis::from_zero("", 97.0, |value| value.to_string());
        let marks: Vec<f64> = axis.marks.iter().map(|mark| mark.0).collect();
        assert_eq!(marks, [0.0, 25.0, 50.0, 75.0, 100.0]);
    }

    #[test]
    fn nonsense_makes_no_endless_axis() {
        for most in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Axis::from_zero("", most, |value| value.to_string()).marks.len() < 10, "{most}");
        }
        let axis = Axis::in_factors("", [f64::NAN, 0.0].into_iter(), |value| value.to_string());
        assert!(axis.low > 0.0 && axis.high.is_finite());
    }

    #[test]
    fn names_never_overlap_and_stay_in_the_drawing() {
        let all: Vec<Series> =
            (0..20).map(|index| series(index, &[10.0, 10.0 + index as f64 * 0.01])).collect();
        let shown: Vec<&Series> = all.iter().collect();
        let area = Area { left: 0.0, top: 10.0, width: 100.0, height: 20.0 * LABEL_STEP };
        let mut places = label_places(&area, &Axis::from_zero("", 20.0, |value| value.to_string()), &shown);
        places.sort_by(f64::total_cmp);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_STEP - 1e-9), "{places:?}");
        assert!(places[0] >= area.top - 1e-9 && places[19] <= area.bottom() + 1e-9, "{places:?}");
    }

    #[test]
    fn every_line_has_its_name_and_every_point_its_words() {
        let names = Axis::of_names("connections", &["1".to_owned(), "50".to_owned()]);
        let y = Axis::from_zero("requests/s", 3.0, |value| value.to_string());
        let svg = lines("title", &names, &y, &[series(0, &[1.0, 2.0]), series(1, &[]), series(2, &[3.0])]);
        assert!(svg.contains(">server 0<") && svg.contains(">server 2<") && !svg.contains(">server 1<"));
        assert_eq!(svg.matches("<title>").count(), 3);
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }

    #[test]
    fn the_ratio_scale_always_shows_equality_and_cuts_what_is_far_out() {
        let far = Mark { estimate: 9.0, low: 8.0, high: 10.0, certain: true, words: String::new() };
        let scale = RatioScale::of([&far].into_iter());
        assert!(scale.low < 1.0 && scale.high < 2.0);
        let row = RatioRow { contender: 0, name: "far".to_owned(), look: look(false), marks: vec![Ok(far)] };
        let column = RatioColumn { heading: "1".to_owned(), resolution: Some(0.01) };
        assert!(ratio_grid("", &[column], &[row]).contains("9 →"));
        let narrow = RatioScale::of([].into_iter());
        assert!(narrow.marks().iter().any(|mark| (mark - 1.0).abs() < 1e-9), "{:?}", narrow.marks());
    }
}
