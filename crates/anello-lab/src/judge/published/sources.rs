//! Published tables: their sources, the compared pairs of servers, and their claims.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::judge::published::table::{Figure, PublishedCell};
use crate::result::measure::Measure;

/// One published table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Short name, which is also the name of the preset that reproduces the comparison.
    pub key: String,
    pub(crate) title: String,
    pub(crate) measured_on: String,
    /// Number of load generator cores per server core, 1 by default. The connections and the rate are divided equally
    /// among these cores. A run whose load generator uses one core is compared with the share of a single core.
    pub(crate) load_cores: Option<usize>,
    /// Compared pairs of servers.
    pub pairs: Vec<Pair>,
    /// Claims made by the publication.
    pub claims: Vec<Claim>,
}

/// Two published servers and their counterparts in the lab.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Published server in the numerator of the ratio.
    pub server: String,
    /// Published server in the denominator of the ratio.
    pub to: String,
    /// Measures to compare.
    pub measures: Vec<Measure>,
    /// Names of the corresponding pairs of contenders.
    pub ours: Vec<(String, String)>,
}

/// A claim, in words, about the table cells within these bounds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim as a sentence, without the full stop.
    pub words: String,
    /// Index of the pair in [`Source::pairs`].
    #[serde(default)]
    pub pair: usize,
    /// Compared measure.
    pub measure: Measure,
    /// `true` if the claim is only that the first server is equal to the second or ahead of it. `false` if the ratio
    /// must also be at least half as far from 1 as the published ratio.
    #[serde(default)]
    pub(crate) level_or_ahead: bool,
    min_connections: Option<usize>,
    max_connections: Option<usize>,
    min_server_cores: Option<usize>,
    max_server_cores: Option<usize>,
}

impl Pair {
    /// Returns the figures of both servers, cell by cell.
    pub fn figures<'a>(&self, figures: &'a [Figure]) -> Vec<(&'a Figure, &'a Figure)> {
        let of =
            |server: &str| figures.iter().filter(move |figure| figure.server == server).collect::<Vec<_>>();
        let others = of(&self.to);
        let other = |one: &Figure| {
            others.iter().find(|other| (other.cell, other.column) == (one.cell, one.column)).copied()
        };
        of(&self.server).into_iter().filter_map(|one| Some((one, other(one)?))).collect()
    }
}

impl Claim {
    /// Returns `true` if the claim applies to a cell.
    pub fn concerns(&self, cell: &PublishedCell) -> bool {
        let is_within = |value: usize, min: Option<usize>, max: Option<usize>| {
            min.is_none_or(|min| value >= min) && max.is_none_or(|max| value <= max)
        };
        is_within(cell.connections, self.min_connections, self.max_connections)
            && is_within(cell.server_cores, self.min_server_cores, self.max_server_cores)
    }
}

impl Source {
    /// Returns the published table.
    pub fn table(&self) -> &'static str {
        match self.key.as_str() {
            "frevib" => include_str!("../../../published/frevib_2020_echo.csv"),
            "joakimthun" => include_str!("../../../published/joakimthun_2023_echo.csv"),
            "monoio-peak" => include_str!("../../../published/monoio_2021_peak.csv"),
            "monoio-fixed" => include_str!("../../../published/monoio_2021_fixed.csv"),
            "go-uring" => include_str!("../../../published/go_uring_2022_echo.csv"),
            "chen622" => include_str!("../../../published/uring_server_2020_http.csv"),
            "chen622-nginx" => include_str!("../../../published/nginx_io_uring_2020_file.csv"),
            _ => "",
        }
    }
}

/// Published tables embedded in this crate.
pub static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let text = include_str!("../../../published/sources.toml");
    let file: HashMap<String, Vec<Source>> =
        toml::from_str(text).expect("a test checks that the compiled-in file is valid");
    file.into_values().flatten().collect()
});
