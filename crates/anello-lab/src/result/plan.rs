//! Stored plan of a run.

use serde::{Deserialize, Serialize};

use crate::plan::cell::Cell;
use crate::plan::config::ScenarioRecord;
use crate::plan::method::Method;
use crate::plan::network::{NetworkPath, shares_cores};

/// Plan of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Scenario of the run.
    pub scenario: ScenarioRecord,
    /// Version of anello under test.
    pub version: String,
    /// Command line that repeats the run.
    pub repeat_command: String,
    /// Seed for the order of the slices and for the bootstrap.
    pub seed: u64,
    /// Duration of a slice, in nanoseconds.
    pub slice_ns: u64,
    /// Duration of the uncounted warm-up before the first slice of a cell, in nanoseconds.
    pub warm_up_ns: u64,
    /// Number of passes. Each pass starts new processes for all contenders.
    pub passes: usize,
    /// Number of rounds per cell and pass.
    pub rounds: usize,
    /// Cells, grouped by chart and in chart order.
    pub cells: Vec<Cell>,
    /// Cores that contenders may use. A cell uses the first [`Cell::server_cores`] of them.
    pub server_cores: Vec<usize>,
    /// Cores of the load generator.
    pub load_cores: Vec<usize>,
    /// Driver of the load generator, "epoll" or "io_uring"; `None` if it did not report one.
    pub load_driver: Option<String>,
    /// Fraction of the cores' CPU time that servers were allowed to use in saturated closed loops.
    #[serde(default = "one")]
    pub server_share: f64,
    /// Measurement method. `None` in results that were written before the field existed; see [`method`](Self::method).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Network path between the servers and the load generator; `None` if both were on one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPath>,
    /// File that the disk workers read and wrote; `None` if there were no disk workers or if the path is not valid
    /// UTF-8. A resumed run must use the same file, because its path is part of the workers' commands.
    pub disk_file: Option<String>,
    /// Name of the reference, with which the other contenders are compared.
    pub reference: String,
    /// Maximum stolen or throttled time, as a fraction of the slice. A slice above this limit is excluded.
    pub stolen_fraction_limit: f64,
    /// `true` if the contenders were checked before the measurements.
    pub checked: bool,
}

impl Plan {
    /// Returns the method of the run. If an older result does not contain the method, derives it from the server share.
    pub fn method(&self) -> Method {
        self.method.unwrap_or_else(|| Method::of_share(self.server_share))
    }

    /// Returns the CPU share of servers in a cell.
    pub(crate) fn server_share_in(&self, cell: &Cell) -> f64 {
        let shares_cores = shares_cores(self.network.as_ref(), &self.server_cores, &self.load_cores);
        cell.server_share_beside(self.server_share, self.load_cores.len(), shares_cores)
    }

    /// Returns the method used in a cell. Servers are limited only in saturated closed loops.
    pub(crate) fn method_in(&self, cell: &Cell) -> Method {
        Method::of_share(self.server_share_in(cell))
    }

    /// Returns the name of the method used in a cell, or an empty string for disk cells and idle connections.
    pub(crate) fn method_name(&self, cell: &Cell) -> &'static str {
        match self.method_in(cell) {
            _ if !cell.workload.has_loops() => "",
            Method::Saturated => "saturated",
            Method::WholeCore => "whole core",
        }
    }

    /// Describes the method used in a cell, for example "saturated: server limited to 80 % of its core".
    pub fn method_description(&self, cell: &Cell) -> String {
        match self.method_in(cell) {
            Method::Saturated => {
                let percent = self.server_share_in(cell) * 100.0;
                format!("saturated: server limited to {percent:.0} % of its core")
            }
            Method::WholeCore => "whole core".to_owned(),
        }
    }
}

/// Default for fields that older results do not contain.
pub(super) fn one() -> f64 {
    1.0
}
