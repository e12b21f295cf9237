//! Drawings as SVG text: lines, points and words in the colours of the [palette](crate::report::palette).
//!
//! Everything here writes well-formed XML, whatever the words are. A drawing takes its colours from the page that it
//! stands in; [`standalone`] makes a file of it that needs no page.

use std::fmt::Write as _;

use crate::report::palette::{Look, Marker, resolved};

/// Height of the letters.
pub const FONT_SIZE: f64 = 12.0;

/// How wide a letter is on average, to guess the width of words before a browser measures them.
const LETTER_WIDTH: f64 = 6.3;

/// A drawing under construction.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Which point of the words stands at the given place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// How words are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    Plain,
    Bold,
}

impl Svg {
    /// An empty drawing of this size.
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    fn add(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    /// Opens a group that belongs to a contender, so that the page can fade or hide it.
    pub fn begin_contender(&mut self, contender: usize) {
        self.add(&format!("<g class=\"s c{contender}\">"));
    }

    /// Closes the group opened last.
    pub fn end(&mut self) {
        self.add("</g>");
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        self.add(&format!(
            "<path d=\"M{} {}L{} {}\" stroke=\"var(--{colour})\" stroke-width=\"{width}\"/>",
            short(from.0),
            short(from.1),
            short(to.0),
            short(to.1)
        ));
    }

    /// A line through all the points, in the look of a contender.
    pub fn curve(&mut self, points: &[(f64, f64)], look: &Look) {
        let mut path = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            // Writing to a string cannot fail.
            write!(path, "{}{} {}", if index == 0 { "M" } else { "L" }, short(*x), short(*y)).ok();
        }
        let dash =
            if look.dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{}\"", look.dash) };
        let width = if look.strong { 2.4 } else { 1.4 };
        self.add(&format!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"var(--{})\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash}/>",
            look.colour
        ));
    }

    /// A filled rectangle.
    pub fn rectangle(&mut self, corner: (f64, f64), size: (f64, f64), colour: &str) {
        self.add(&format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"var(--{colour})\"/>",
            short(corner.0),
            short(corner.1),
            short(size.0.max(0.0)),
            short(size.1.max(0.0))
        ));
    }

    /// A point in the shape and colour of a contender, with words that show when one points at it.
    pub fn marker(&mut self, at: (f64, f64), look: &Look, radius: f64, words: &str) {
        let (x, y) = at;
        let path = |points: &[(f64, f64)]| {
            let mut path = String::new();
            for (index, (dx, dy)) in points.iter().enumerate() {
                let command = if index == 0 { "M" } else { "L" };
                write!(path, "{command}{} {}", short(x + dx * radius), short(y + dy * radius)).ok();
            }
            format!("<path d=\"{path}Z\"")
        };
        let shape = match look.marker {
            Marker::Circle => {
                format!("<circle cx=\"{}\" cy=\"{}\" r=\"{}\"", short(x), short(y), short(radius))
            }
            Marker::Square => path(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
            Marker::Diamond => path(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
            Marker::Triangle => path(&[(0.0, -1.25), (1.15, 0.9), (-1.15, 0.9)]),
            Marker::TriangleDown => path(&[(0.0, 1.25), (1.15, -0.9), (-1.15, -0.9)]),
            Marker::Cross => path(&[
                (-0.4, -1.2),
                (0.4, -1.2),
                (0.4, -0.4),
                (1.2, -0.4),
                (1.2, 0.4),
                (0.4, 0.4),
                (0.4, 1.2),
                (-0.4, 1.2),
                (-0.4, 0.4),
                (-1.2, 0.4),
                (-1.2, -0.4),
                (-0.4, -0.4),
            ]),
        };
        let tip = if words.is_empty() { String::new() } else { format!("<title>{}</title>", escape(words)) };
        let element = if look.marker == Marker::Circle { "circle" } else { "path" };
        self.add(&format!("{shape} fill=\"var(--{})\">{tip}</{element}>", look.colour));
    }

    /// Words, centred on the line through `at`.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, colour: &str, weight: Weight, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let weight = if weight == Weight::Bold { " font-weight=\"600\"" } else { "" };
        self.add(&format!(
            "<text x=\"{}\" y=\"{}\"{anchor} fill=\"var(--{colour})\"{weight}>{}</text>",
            short(at.0),
            short(at.1 + FONT_SIZE * 0.35),
            escape(words)
        ));
    }

    /// The finished drawing, with words for those who cannot see it.
    pub fn finish(self, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" \
             font-size=\"{FONT_SIZE}\">\n{}</svg>",
            short(self.width),
            short(self.height),
            escape(title),
            self.body
        )
    }
}

/// Makes a file of a finished drawing: its own colours, font, size and ground, on light.
pub fn standalone(svg: &str) -> String {
    let view =
        svg.split("viewBox=\"0 0 ").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("460 300");
    let (width, height) = view.split_once(' ').unwrap_or(("460", "300"));
    let opening = format!("<svg width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" ");
    let svg = svg.replacen("<svg ", &opening, 1);
    let ground = ">\n<rect width=\"100%\" height=\"100%\" fill=\"var(--card)\"/>\n";
    format!("{}\n", resolved(&svg.replacen(">\n", ground, 1)))
}

/// About how wide these words will be.
pub fn width_of(words: &str) -> f64 {
    words.chars().count() as f64 * LETTER_WIDTH
}

/// A coordinate without needless digits.
fn short(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Makes any text safe inside an element or a quoted attribute of XML or HTML.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML has no way to write these, and a page no use for them.
            control if control.is_control() && !matches!(control, '\t' | '\n' | '\r') => {
                escaped.push('\u{fffd}')
            }
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_break_out() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text((1.0, 2.0), Anchor::End, "fg", Weight::Bold, "a<b>&\"'\u{1}");
        let svg = svg.finish("<title>");
        assert!(svg.contains("a&lt;b&gt;&amp;&quot;&#39;\u{fffd}</text>"), "{svg}");
        assert!(svg.contains("aria-label=\"&lt;title&gt;\""));
    }

    #[test]
    fn a_drawing_of_its_own_names_no_variables() {
        let mut svg = Svg::new(100.0, 50.0);
        svg.line((0.0, 0.0), (100.0, 50.0), "grid", 1.0);
        let file = standalone(&svg.finish("a line"));
        assert!(!file.contains("var("), "{file}");
        assert!(file.starts_with("<svg width=\"100\" height=\"50\""), "{file}");
        assert_eq!(file.matches("<rect").count(), 1);
    }

    #[test]
    fn coordinates_are_short_and_never_nonsense() {
        assert_eq!([short(1.0), short(1.26), short(f64::NAN), short(-0.5)], ["1", "1.3", "0", "-0.5"]);
    }
}
