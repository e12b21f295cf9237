//! Colours, dashes and markers of the contenders in charts.
//!
//! Colour is never the only distinction: lines also have a marker and a label.

use serde::Serialize;

use crate::plan::contender::Role;
use crate::result::ContenderRecord;

/// A colour: its values for a light and a dark background.
pub type Colour = (&'static str, &'static str);

/// Colours for a light background, and the same number of colours for a dark one.
type Palette = [&'static [&'static str]; 2];

const ANELLO: Palette =
    [&["#d9480f", "#1864ab", "#e08a00", "#3b97e0"], &["#ff7a45", "#4c9be8", "#ffc14d", "#9bd0ff"]];

const BASELINE: Palette =
    [&["#3f454d", "#69707a", "#8a9199", "#a9aeb4"], &["#ced3d9", "#a6adb5", "#8a929b", "#6e767f"]];

const PEER: Palette = [
    &[
        "#7048c8", "#2b8a3e", "#c2255c", "#0b7285", "#7d6c00", "#8a4b2a", "#9c2fb0", "#5c940d", "#c92a2a",
        "#4a5fc1", "#087f5b", "#a8326e", "#5b6b2f", "#6b4f9e", "#99582a", "#2f6f7e",
    ],
    &[
        "#b197fc", "#69c17b", "#f783ac", "#3bc9db", "#d8c84a", "#d8a07c", "#e28be0", "#a9d65a", "#ff8787",
        "#98a9ff", "#38d9a9", "#faa2c1", "#c0ca80", "#cdb4f6", "#e8b27d", "#7fc7d6",
    ],
];

/// Colour of the reference, if the reference is not an anello contender.
const REFERENCE: Colour = ("#1d1f23", "#e8e6e1");

/// Dash patterns of lines that share a colour.
const DASHES: [&[i32]; 4] = [&[], &[6, 3], &[2, 3], &[8, 3, 2, 3]];

const MARKERS: [char; 6] = ['●', '■', '◆', '▲', '▼', '✚'];

#[derive(Clone, Copy, Serialize)]
pub struct Look {
    /// Colour of the line and its marker. Pages define it as a CSS variable.
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
    let many_baselines = count(Role::Anello) == 0 || count(Role::Baseline) > BASELINE[0].len() + 2;
    let colourful_baselines = count(Role::Peer) == 0 && many_baselines;
    let mut counts = [0; 3];
    let look = |contender: &ContenderRecord| {
        let (family, [light, dark]) = match contender.role {
            Role::Anello => (0, ANELLO),
            Role::Baseline if !colourful_baselines => (1, BASELINE),
            Role::Baseline | Role::Peer => (2, PEER),
        };
        let number = counts[family];
        counts[family] += 1;
        let index = number % light.len();
        let is_reference = contender.name == reference;
        let dash = if is_reference || family == 1 { number + 1 } else { number / light.len() };
        Look {
            colour: if is_reference && family != 0 { REFERENCE } else { (light[index], dark[index]) },
            dash: DASHES[dash % DASHES.len()],
            marker: MARKERS[number % MARKERS.len()],
            is_strong: contender.role == Role::Anello || is_reference,
        }
    };
    contenders.iter().map(look).collect()
}
