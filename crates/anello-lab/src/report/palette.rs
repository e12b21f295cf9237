//! Colours, dashes and markers of the contenders in charts.
//!
//! Colour is never the only distinction: lines also have a marker and a label.

use serde::Serialize;

use crate::plan::contender::Role;
use crate::result::ContenderRecord;

/// A colour for a light and a dark background.
pub type Colour = (&'static str, &'static str);

const ANELLO: [Colour; 4] =
    [("#d9480f", "#ff7a45"), ("#1864ab", "#4c9be8"), ("#e08a00", "#ffc14d"), ("#3b97e0", "#9bd0ff")];

const BASELINE: [Colour; 4] =
    [("#3f454d", "#ced3d9"), ("#69707a", "#a6adb5"), ("#8a9199", "#8a929b"), ("#a9aeb4", "#6e767f")];

const PEER: [Colour; 16] = [
    ("#7048c8", "#b197fc"),
    ("#2b8a3e", "#69c17b"),
    ("#c2255c", "#f783ac"),
    ("#0b7285", "#3bc9db"),
    ("#7d6c00", "#d8c84a"),
    ("#8a4b2a", "#d8a07c"),
    ("#9c2fb0", "#e28be0"),
    ("#5c940d", "#a9d65a"),
    ("#c92a2a", "#ff8787"),
    ("#4a5fc1", "#98a9ff"),
    ("#087f5b", "#38d9a9"),
    ("#a8326e", "#faa2c1"),
    ("#5b6b2f", "#c0ca80"),
    ("#6b4f9e", "#cdb4f6"),
    ("#99582a", "#e8b27d"),
    ("#2f6f7e", "#7fc7d6"),
];

/// The reference, if it is not an anello contender.
const REFERENCE: Colour = ("#1d1f23", "#e8e6e1");

/// Dash patterns of lines that share a colour.
const DASHES: [&[i32]; 4] = [&[], &[6, 3], &[2, 3], &[8, 3, 2, 3]];

const MARKERS: [char; 6] = ['●', '■', '◆', '▲', '▼', '✚'];

#[derive(Clone, Copy, Serialize)]
pub struct Look {
    /// Colour of the line and its marker. Pages define it as a variable.
    #[serde(skip)]
    pub colour: Colour,
    /// Lengths of dashes and gaps in pixels; empty for a solid line.
    pub dash: &'static [i32],
    pub marker: char,
    /// `true` for the anello contenders and the reference.
    pub is_strong: bool,
}

pub fn looks(contenders: &[ContenderRecord], reference: &str) -> Vec<Look> {
    let count = |role| contenders.iter().filter(|contender| contender.role == role).count();
    // Many shades of grey would be hard to distinguish.
    let many_baselines = count(Role::Anello) == 0 || count(Role::Baseline) > BASELINE.len() + 2;
    let colourful_baselines = count(Role::Peer) == 0 && many_baselines;
    let mut counts = [0; 3];
    let look = |contender: &ContenderRecord| {
        let (family, colours): (usize, &[Colour]) = match contender.role {
            Role::Anello => (0, &ANELLO),
            Role::Baseline if !colourful_baselines => (1, &BASELINE),
            Role::Baseline | Role::Peer => (2, &PEER),
        };
        let number = counts[family];
        counts[family] += 1;
        let is_reference = contender.name == reference;
        let dash = if is_reference || family == 1 { number + 1 } else { number / colours.len() };
        Look {
            colour: if is_reference && family != 0 { REFERENCE } else { colours[number % colours.len()] },
            dash: DASHES[dash % DASHES.len()],
            marker: MARKERS[number % MARKERS.len()],
            is_strong: contender.role == Role::Anello || is_reference,
        }
    };
    contenders.iter().map(look).collect()
}
