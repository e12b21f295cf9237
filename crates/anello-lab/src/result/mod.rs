//! Run results: the types that are stored, read back and reported.
//!
//! The JSON report is a serialized [`LabResult`]. [`SCHEMA_VERSION`] is incremented with every change that an older
//! reader would misinterpret. Adding a field does not change the version.

mod contender;
pub mod environment;
mod estimate;
pub mod executable;
mod figures;
mod finding;
pub(crate) mod gzip;
mod lab_result;
pub mod latency;
pub mod measure;
mod plan;
mod row;
mod schema_2;
mod slice;
mod stored;
pub(crate) mod time;

pub use contender::ContenderRecord;
pub use environment::{Disk, Environment};
pub use estimate::{Estimate, Ratio};
pub use figures::Figures;
pub use finding::{Consequence, Failure, Finding, FindingKind, Verdict};
pub use lab_result::{CheckRecord, Completed, LabResult, LatencyRecord, SCHEMA, SCHEMA_VERSION};
pub use plan::Plan;
pub use row::{CellResult, Comparison, Outcome, PairComparison, PhaseSummary, Resolution, Row};
pub use slice::{Quality, Slice};
pub use stored::ReadError;
