//! Tools for servers with several workers: shared listening sockets, connections that move between workers, the order
//! of the cores, and memory that is returned after a burst.
//!
//! A program needs none of them to serve on one worker: it accepts from a [`TcpListener`](crate::net::TcpListener).
//!
//! | task | item |
//! |---|---|
//! | accept on all workers, and pause, hand over or close the sockets together | [`ListenerGroup`] |
//! | distribute the connections over the workers | [`Distribution`] |
//! | keep the workers equally busy | [`Rebalancer`] |
//! | pass a connection to another thread | [`StreamSocket::move_to`](crate::net::StreamSocket::move_to), [`DetachedStream`] |
//! | choose cores | [`Topology`] |
//! | keep a table of the connections | [`PagedSlab`], [`HeapTrim`] |
//!
//! A server that echoes on two workers, and ends when its group is closed:
//!
//! ```
//! use anello::Workers;
//! use anello::net::TcpListener;
//! use anello::server::{ListenerGroup, PendingConnections};
//!
//! let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 2)?;
//! let address = group.sockets()?[0].local_addr()?;
//! let joined = group.clone();
//! let workers = Workers::builder().unpinned_workers(2).start(move |worker| {
//!     let group = joined.clone();
//!     async move {
//!         let member = group.join(worker.index);
//!         // Returns `None` once the group is closed.
//!         while let Some(mut stream) = member.accept().await? {
//!             anello::spawn(async move {
//!                 while let Some(chunk) = stream.recv().await? {
//!                     stream.send(chunk).await?;
//!                 }
//!                 Ok::<(), std::io::Error>(())
//!             })
//!             .detach();
//!         }
//!         Ok::<(), std::io::Error>(())
//!     }
//! })?;
//! let mut client = std::net::TcpStream::connect(address)?;
//! std::io::Write::write_all(&mut client, b"ciao")?;
//! std::io::Read::read_exact(&mut client, &mut [0; 4])?;
//! group.close(PendingConnections::Serve);
//! for served in workers.join()? {
//!     served?;
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod attached_stream;
mod detached_stream;
mod listener_group;
mod move_to;
mod paged_slab;
mod rebalancer;

pub use attached_stream::AttachedStream;
pub use detached_stream::DetachedStream;
pub use listener_group::{Distribution, GroupListener, GroupMember, ListenerGroup, PendingConnections};
pub use paged_slab::PagedSlab;
pub use rebalancer::{Rebalancer, RebalancerMember};

pub use crate::executor::{Core, HeapTrim, Topology, parse_core_list};
