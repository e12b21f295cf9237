//! Deterministic simulation of several hosts, for tests of distributed programs.
//!
//! A [`Simulation`] runs several hosts on one thread and one virtual clock. Each host has its own runtime on the
//! [simulated driver](SimOptions), a name, an IPv4 address, an IPv6 address and a loopback interface. Programs
//! run unchanged: they bind to `0.0.0.0:80`, connect to `leader:80`, spawn tasks and sleep. No real time passes while
//! they wait. [`Control`] separates hosts, crashes and restarts them, sends them signals, and changes the links between
//! them. One seed determines a run completely, and [`check`] runs a test with many seeds.
//!
//! ```
//! use std::time::Duration;
//!
//! use anello::net::{TcpListener, TcpStream};
//! use anello::sim::{Simulation, check};
//! use anello::time::sleep;
//!
//! check("client_survives_a_crash", 0..10, |seed| {
//!     let mut sim = Simulation::builder().seed(seed).build();
//!     sim.host("server", async || {
//!         let listener = TcpListener::bind("0.0.0.0:80")?;
//!         loop {
//!             listener.accept().await?.write_all(b"ciao").await?;
//!         }
//!     });
//!     let control = sim.control();
//!     sim.client("client", async move {
//!         control.crash("server");
//!         sleep(Duration::from_millis(500)).await;
//!         control.restart("server");
//!         loop {
//!             if let Ok(mut stream) = TcpStream::connect("server:80").await
//!                 && stream.recv().await?.is_some()
//!             {
//!                 return Ok(());
//!             }
//!             sleep(Duration::from_millis(100)).await;
//!         }
//!     });
//!     sim.run()
//! });
//! ```
//!
//! # Model
//!
//! - *Network*: a packet travels for the latency of its link. The bytes of a connection arrive in order. The sender
//!   can have as many bytes in transit and unread as the socket buffers of both sides hold. There is no congestion
//!   control. Unix sockets reach only sockets on the same host. Connections within a host have no latency.
//! - *Partition*: the state of a link when a packet would arrive decides. A datagram is lost. A packet of a connection
//!   waits and arrives at the repair, as if TCP had sent it again. After the
//!   [timeout](SimulationBuilder::tcp_timeout), the connection fails with `TimedOut`.
//! - *Crash*: the host's tasks are dropped, and it sends nothing more. Packets on their way from the host still arrive;
//!   those to the host wait as during a partition. After a restart, the host does not know the connections, and replies
//!   to their packets with a reset.
//! - *Files* are real files. A host can have a [delay of file operations](Control::set_disk_delay) and
//!   [errors of its disk](Control::set_disk_errors), and [lose](Control::set_crash_loss) unsynced changes in a crash.
//! - *Time*: all hosts share one clock, so instants of different hosts can be compared, unless a clock
//!   [drifts](Control::set_clock_drift). Each host has a [wall clock](Control::set_system_time). A system call takes
//!   100 ns.
//!
//! # Determinism
//!
//! A run depends only on the seed, the options and the programs, if the programs do not read the real time, use other
//! sources of random numbers than [`fill_random`](crate::fill_random), start threads, or iterate over a `HashMap` with a
//! random hasher. Two runs with the same seed have the same [hash](Control::trace_hash).

mod builder;
mod check;
mod clocks;
mod control;
mod disk;
mod error;
mod faults;
mod host;
mod simulation;

pub use builder::SimulationBuilder;
pub use check::check;
pub use control::Control;
pub use error::Error;
pub use simulation::Simulation;

pub use crate::driver::{CrashLoss, LinkOptions, LinkStatistics, SimFaults, SimModel, SimOptions};
