//! The echo server: connections, and the counters of the workers.

mod connections;
mod exchange;
mod metrics;

pub use self::connections::{Limits, Moved, OpenConnections, accept};
pub use self::exchange::Sizes;
pub use self::metrics::{ServerMetrics, WorkerMetrics};
