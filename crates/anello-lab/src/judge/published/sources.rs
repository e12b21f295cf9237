//! Published tables: their sources, the compared pairs of servers, and their claims.

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
    /// Publisher and year.
    pub title: String,
    /// Machine and conditions of the measurement.
    pub measured_on: String,
    /// Number of load generator cores per server core. The connections and the rate are divided equally
    /// among these cores. A run whose load generator uses one core is compared with the share of a single core.
    #[serde(default = "one")]
    pub load_cores: usize,
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
    /// Compared measures.
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
    /// `true` if the first server is equal to the second or ahead of it by any factor; `false` if the ratio is at least
    /// half as far from 1 as the published one.
    #[serde(default)]
    pub level_or_ahead: bool,
    /// Minimum number of connections.
    #[serde(default)]
    pub min_connections: usize,
    /// Maximum number of connections.
    #[serde(default = "unlimited")]
    pub max_connections: usize,
    /// Minimum number of server cores.
    #[serde(default)]
    pub min_server_cores: usize,
    /// Maximum number of server cores.
    #[serde(default = "unlimited")]
    pub max_server_cores: usize,
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
        (self.min_connections..=self.max_connections).contains(&cell.connections)
            && (self.min_server_cores..=self.max_server_cores).contains(&cell.server_cores)
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
    #[derive(Deserialize)]
    struct Sources {
        source: Vec<Source>,
    }
    let sources: Sources = toml::from_str(include_str!("../../../published/sources.toml"))
        .expect("the compiled-in file is valid, which the tests check");
    sources.source
});

fn one() -> usize {
    1
}

fn unlimited() -> usize {
    usize::MAX
}
