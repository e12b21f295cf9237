//! The colours of the reports, and who gets which.
//!
//! A colour is the name of a CSS variable. It is defined once, for light and for dark; the page's style sheet and the
//! standalone drawings are both made from the table here. Colour never carries a meaning alone: a line has a marker
//! and a label too, a verdict has a sign.

use std::fmt::Write as _;

use crate::plan::contender::Role;
use crate::result::ContenderRecord;

/// Name, value on a light ground, value on a dark ground.
const COLOURS: [(&str, &str, &str); 40] = [
    ("bg", "#fbfaf8", "#15171a"),
    ("card", "#ffffff", "#1c1f23"),
    ("fg", "#1d1f23", "#e8e6e1"),
    ("muted", "#5f646c", "#a0a6ae"),
    ("grid", "#e8e6e1", "#2c3036"),
    ("line", "#dedbd4", "#363b41"),
    ("band", "#e9e6de", "#2d3137"),
    ("accent", "#b3410a", "#ff9a5c"),
    ("link", "#1558a0", "#7ab8f5"),
    ("good", "#0a6355", "#7fdcc8"),
    ("good-bg", "#d8efe9", "#143a34"),
    ("good-line", "#2a9d88", "#2f8f7d"),
    ("bad", "#8f4204", "#ffbd82"),
    ("bad-bg", "#fbe6d0", "#43290f"),
    ("bad-line", "#d9822b", "#b8702a"),
    ("level-line", "#b9bcc0", "#5a6068"),
    // anello: the strong ones.
    ("anello-0", "#d9480f", "#ff7a45"),
    ("anello-1", "#1864ab", "#4c9be8"),
    ("anello-2", "#e08a00", "#ffc14d"),
    ("anello-3", "#3b97e0", "#9bd0ff"),
    // The bare servers: greys.
    ("bare-0", "#3f454d", "#ced3d9"),
    ("bare-1", "#69707a", "#a6adb5"),
    ("bare-2", "#8a9199", "#8a929b"),
    ("bare-3", "#a9aeb4", "#6e767f"),
    // Everyone else: hues, neither of anello's.
    ("peer-0", "#7048c8", "#b197fc"),
    ("peer-1", "#2b8a3e", "#69c17b"),
    ("peer-2", "#c2255c", "#f783ac"),
    ("peer-3", "#0b7285", "#3bc9db"),
    ("peer-4", "#7d6c00", "#d8c84a"),
    ("peer-5", "#8a4b2a", "#d8a07c"),
    ("peer-6", "#9c2fb0", "#e28be0"),
    ("peer-7", "#5c940d", "#a9d65a"),
    ("peer-8", "#c92a2a", "#ff8787"),
    ("peer-9", "#4a5fc1", "#98a9ff"),
    ("peer-10", "#087f5b", "#38d9a9"),
    ("peer-11", "#a8326e", "#faa2c1"),
    ("peer-12", "#5b6b2f", "#c0ca80"),
    ("peer-13", "#6b4f9e", "#cdb4f6"),
    ("peer-14", "#99582a", "#e8b27d"),
    ("peer-15", "#2f6f7e", "#7fc7d6"),
];

const ANELLO_COLOURS: usize = 4;
const BARE_COLOURS: usize = 4;
const PEER_COLOURS: usize = 16;

/// Dashes of lines that share a colour with an earlier one.
const DASHES: [&str; 4] = ["", "6 3", "2 2.5", "8 3 2 3"];

/// The shape of the points on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Diamond,
    Triangle,
    TriangleDown,
    Cross,
}

impl Marker {
    /// The shape as a letter.
    pub fn letter(self) -> char {
        match self {
            Marker::Circle => '●',
            Marker::Square => '■',
            Marker::Diamond => '◆',
            Marker::Triangle => '▲',
            Marker::TriangleDown => '▼',
            Marker::Cross => '✚',
        }
    }
}

const MARKERS: [Marker; 6] =
    [Marker::Circle, Marker::Square, Marker::Diamond, Marker::Triangle, Marker::TriangleDown, Marker::Cross];

/// How a contender is drawn everywhere in a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// Its side.
    pub role: Role,
    /// Its colour, as the name of a variable without dashes before it.
    pub colour: String,
    /// Dash pattern of its lines; empty for a whole line.
    pub dash: &'static str,
    /// The shape of its points.
    pub marker: Marker,
    /// Whether it is to stand out.
    pub strong: bool,
}

/// The look of each contender, in their order.
pub fn looks(contenders: &[ContenderRecord], reference: &str) -> Vec<Look> {
    let roles: Vec<Role> = contenders.iter().map(|contender| contender.role).collect();
    // Where only yardsticks compete, greys would leave nothing to tell them apart by.
    let count = |wanted| roles.iter().filter(|&&role| role == wanted).count();
    let many_bare = count(Role::Baseline) > BARE_COLOURS + 2;
    let only_bare = count(Role::Peer) == 0 && (count(Role::Anello) == 0 || many_bare);
    let mut counts = [0usize; 3];
    let look = |(index, contender): (usize, &ContenderRecord)| {
        let role = roles[index];
        let coloured_as = if only_bare && role == Role::Baseline { Role::Peer } else { role };
        let (slot, family, colours) = match coloured_as {
            Role::Anello => (0, "anello", ANELLO_COLOURS),
            Role::Baseline => (1, "bare", BARE_COLOURS),
            Role::Peer => (2, "peer", PEER_COLOURS),
        };
        let nth = counts[slot];
        counts[slot] += 1;
        let is_reference = contender.name == reference;
        let dash = match coloured_as {
            Role::Baseline => DASHES[(nth + 1) % DASHES.len()],
            Role::Anello | Role::Peer => DASHES[nth / colours % DASHES.len()],
        };
        Look {
            role,
            // anello keeps its colour also where the others are compared with it.
            colour: if is_reference && role != Role::Anello {
                "fg".to_owned()
            } else {
                format!("{family}-{}", nth % colours)
            },
            dash: if is_reference { "5 3" } else { dash },
            marker: MARKERS[nth % MARKERS.len()],
            strong: role == Role::Anello || is_reference,
        }
    };
    contenders.iter().enumerate().map(look).collect()
}

/// The definitions of all variables for a style sheet: light, dark where the reader's system says so, and either
/// where the switch on the page has been used.
pub fn style_sheet() -> String {
    let block = |dark: bool| {
        let mut text = String::new();
        for (name, light, dark_value) in COLOURS {
            // Writing to a string cannot fail.
            write!(text, "--{name}:{};", if dark { dark_value } else { light }).ok();
        }
        text
    };
    format!(
        ":root{{color-scheme:light dark;{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n\
         :root[data-theme=light]{{color-scheme:light;{light}}}\n:root[data-theme=dark]{{color-scheme:dark;{dark}}}\n",
        light = block(false),
        dark = block(true)
    )
}

/// The drawing with every variable replaced by its value on a light ground.
pub fn resolved(svg: &str) -> String {
    COLOURS.iter().fold(svg.to_owned(), |svg, (name, light, _)| svg.replace(&format!("var(--{name})"), light))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    fn value(name: &str, dark: bool) -> &'static str {
        let colour = COLOURS.iter().find(|colour| colour.0 == name).unwrap();
        if dark { colour.2 } else { colour.1 }
    }

    #[test]
    fn text_can_be_read_and_lines_can_be_seen_on_both_grounds() {
        for dark in [false, true] {
            for (text, ground) in [
                ("fg", "bg"),
                ("muted", "card"),
                ("muted", "bg"),
                ("good", "good-bg"),
                ("bad", "bad-bg"),
                ("link", "bg"),
            ] {
                let found = contrast(value(text, dark), value(ground, dark));
                assert!(found >= 4.5, "{text} on {ground}, dark {dark}: {found:.2}");
            }
            for (name, _, _) in COLOURS.iter().filter(|colour| {
                ["anello-", "bare-", "peer-"].iter().any(|family| colour.0.starts_with(family))
            }) {
                let found = contrast(value(name, dark), value("card", dark));
                assert!(found >= 2.2, "{name}, dark {dark}: {found:.2}");
            }
        }
    }

    #[test]
    fn every_variable_has_a_value_for_light_and_for_dark() {
        let sheet = style_sheet();
        for (name, light, dark) in COLOURS {
            assert!(sheet.matches(&format!("--{name}:{light};")).count() >= 2, "{name} on light");
            assert!(sheet.matches(&format!("--{name}:{dark};")).count() >= 2, "{name} on dark");
        }
        let names: std::collections::HashSet<&str> = COLOURS.iter().map(|colour| colour.0).collect();
        assert_eq!(names.len(), COLOURS.len());
    }
}
