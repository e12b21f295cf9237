//! Run results: the types that are stored, read back and reported.
//!
//! The JSON report is a serialized [`LabResult`]. [`SCHEMA_VERSION`] is incremented with every change that an older
//! version of the lab would misinterpret. Adding a field does not change the version.

pub(crate) mod environment;
pub mod executable;
mod finding;
pub(crate) mod gzip;
mod lab_result;
pub mod latency;
pub mod measure;
mod plan;
mod row;
mod slice;
mod stored;
pub(crate) mod time;
pub(crate) mod unique;

pub use environment::{Disk, Environment};
pub use finding::{Consequence, Failure, Finding, FindingKind, Verdict};
pub use lab_result::{
    CheckRecord, Completed, ContenderRecord, LabResult, LatencyRecord, SCHEMA, SCHEMA_VERSION,
};
pub use plan::Plan;
pub use row::{CellResult, Comparison, Estimate, Figures, Outcome, PairComparison, PhaseSummary, Ratio, Row};
pub use slice::{Quality, Slice};
pub use stored::ReadError;
