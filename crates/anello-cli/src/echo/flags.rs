//! Flags of `anello echo`.

use std::num::NonZero;
use std::time::Duration;

use crate::common::address::Address;
use crate::common::admin::AdminFlags;
use crate::common::driver_flags::DriverFlags;
use crate::common::listening::Distribution;
use crate::common::values;
use crate::common::worker_flags::WorkerFlags;

/// Run an echo server (RFC 862), which sends back everything that it receives
///
/// With --request-bytes and --response-bytes, each request of a fixed size gets a response of a fixed size instead:
/// byte i of the response is byte (i modulo the request size) of the request. Responses are sent in request order; a
/// request that is incomplete when the client closes the connection gets no response.
///
/// Prints one ready line with the address, the driver and the kernel features in use. On SIGINT or SIGTERM, the server
/// stops accepting connections, echoes the received data and closes the connections; a second signal closes them
/// immediately. The exit code is 0 in both cases. If a service manager such as systemd passes sockets (LISTEN_FDS),
/// they are used and --addr must be omitted.
#[derive(clap::Args)]
pub struct Arguments {
    /// Address to listen on; can be repeated [default: 127.0.0.1:7000]
    ///
    /// IP:PORT, where port 0 lets the kernel choose the port; HOST:PORT for the addresses of a host name, such as
    /// localhost; PORT for 127.0.0.1; :PORT for all addresses of this machine; unix:/path for a socket file; or
    /// unix:@name for an abstract Unix address. A stale socket file is replaced at startup, and the file is removed at
    /// exit.
    #[arg(long, value_name = "ADDRESS")]
    pub addr: Vec<Address>,
    /// Size of a request in bytes
    #[arg(long, value_name = "BYTES", requires = "response_bytes")]
    pub request_bytes: Option<NonZero<usize>>,
    /// Size of a response in bytes
    #[arg(long, value_name = "BYTES", requires = "request_bytes")]
    pub response_bytes: Option<NonZero<usize>>,
    #[command(flatten)]
    pub workers: WorkerFlags,
    /// How connections are distributed across the workers
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = Distribution::Balanced)]
    pub distribution: Distribution,
    /// Do not move connections from busy workers to less busy ones
    ///
    /// By default, a worker with more than 1.05 times the average number of messages moves some of its busiest
    /// connections to other workers. No byte is lost.
    #[arg(long)]
    pub no_rebalance: bool,
    /// Maximum number of connections across all workers; further connections are accepted and closed
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub max_connections: usize,
    /// Close connections that are idle for this long, e.g. 60s [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub idle_timeout: Option<Duration>,
    /// Grace period for open connections after a signal; the remaining ones are reset (TCP)
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "5s")]
    pub drain_timeout: Duration,
    #[command(flatten)]
    pub admin: AdminFlags,
    #[command(flatten)]
    pub driver: DriverFlags,
}
