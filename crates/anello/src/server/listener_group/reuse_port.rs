//! Groups with one socket per member, which share an address (`SO_REUSEPORT`).

use std::io;
use std::net::SocketAddr;

use super::ListenerGroup;
use super::distribution::Distribution;
use super::state::GroupState;
use crate::driver::{listen_shared, steer_by_core, stop_steering, with_context};
use crate::executor::with_current;
use crate::net::{BACKLOG, TcpListener};

impl ListenerGroup<TcpListener> {
    /// Creates a group of `members` members with one listening TCP socket per member, all bound to one address
    /// (`SO_REUSEPORT`, with a backlog of 4096). If the port is 0, the kernel selects a port for all of them.
    ///
    /// Needs no runtime, so the address can be bound before the workers start. If the runtime that runs on this thread
    /// is that of a [simulated host](crate::sim), the sockets are those of the host, and several tasks can join the
    /// group as workers do.
    ///
    /// ```
    /// use anello::Workers;
    /// use anello::net::{TcpListener, TcpStream};
    /// use anello::server::{ListenerGroup, PendingConnections};
    ///
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 2)?;
    /// let address = group.sockets()?[0].local_addr()?;
    /// let joined = group.clone();
    /// let workers = Workers::builder().unpinned_workers(2).start(move |worker| {
    ///     let joined = joined.clone();
    ///     async move {
    ///         let member = joined.join(worker.index);
    ///         let mut served = 0;
    ///         while member.accept().await?.is_some() {
    ///             served += 1;
    ///         }
    ///         Ok::<_, std::io::Error>(served)
    ///     }
    /// })?;
    /// anello::Runtime::new()?.block_on(TcpStream::connect(address))?;
    /// group.close(PendingConnections::Serve);
    /// let served: usize = workers.join()?.into_iter().sum::<std::io::Result<usize>>()?;
    /// assert_eq!(served, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error from `socket(2)`, `setsockopt(2)`, `bind(2)` or `listen(2)` with the address. Does not wait for an
    /// address that is in use (`AddrInUse`): a server that replaces a process that was killed retries for a second or two,
    /// as [`TcpListenerBuilder::bind_timeout`](crate::net::TcpListenerBuilder::bind_timeout) explains.
    pub fn bind(mut address: SocketAddr, members: usize) -> io::Result<Self> {
        let mut sockets = Vec::with_capacity(members);
        for _ in 0..members {
            let simulated =
                with_current(|shared| shared.driver.borrow_mut().listen_detached(address, BACKLOG)).flatten();
            let listening = simulated.unwrap_or_else(|| listen_shared(address, BACKLOG).map(Into::into));
            let socket =
                listening.map_err(|error| with_context(format_args!("cannot bind {address}"), error))?;
            address = socket.local_addr()?;
            sockets.push(socket);
        }
        Ok(Self::with_state(sockets, members, GroupState::Open))
    }

    /// Makes the kernel select the listening socket of a connection by the core on which the connection arrives: on
    /// core `cores[i]`, the socket with index `i` (a classic BPF program, `SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5).
    /// Connections that arrive on other cores go to the socket with the index of the core modulo the number of cores.
    /// Sets the distribution to [`Kernel`](Distribution::Kernel).
    ///
    /// The group must have been created from one `SO_REUSEPORT` socket per member, in the order in which `listen(2)`
    /// was called on them, and `cores` is the core of each member's worker
    /// ([`WorkerContext::core`](crate::WorkerContext::core)). The network stack, the worker and the application then
    /// use the same core for a connection, provided that the network card distributes connections over the cores
    /// (receive-side scaling). The load of the workers depends on that distribution.
    ///
    /// ```
    /// use anello::net::TcpListener;
    /// use anello::server::{Distribution, ListenerGroup};
    ///
    /// let cores = anello::doctor::allowed_cores()?;
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), cores.len())?;
    /// group.steer_by_core(&cores)?;
    /// assert_eq!(group.distribution(), Distribution::Kernel);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns `InvalidInput` if the number of cores differs from the number of sockets or is greater than 2,046, or if
    /// the group is closed, and `Unsupported` for simulated sockets. Returns the error from `setsockopt(2)`, for example
    /// for Unix sockets.
    pub fn steer_by_core(&self, cores: &[usize]) -> io::Result<()> {
        let state = self.group.lock();
        let count = state.sockets.iter().flatten().count();
        let Some(socket) = state.sockets.iter().flatten().next().filter(|_| count == cores.len()) else {
            let message = format!(
                "cannot steer connections: the group has {count} open sockets for {} cores (use one per core)",
                cores.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        steer_by_core(&socket.descriptor()?, cores)?;
        drop(state);
        self.set_distribution(Distribution::Kernel);
        Ok(())
    }

    /// Makes the kernel select the listening socket by a hash of the addresses again, after
    /// [`steer_by_core`](Self::steer_by_core) (`SO_DETACH_REUSEPORT_BPF`, Linux 5.3).
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`, or `Unsupported` for simulated sockets.
    ///
    /// ```
    /// # use anello::net::TcpListener;
    /// # use anello::server::{Distribution, ListenerGroup};
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// group.steer_by_core(&[0])?;
    /// group.stop_steering()?;
    /// group.set_distribution(Distribution::Balanced);
    /// assert_eq!(group.distribution(), Distribution::Balanced);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn stop_steering(&self) -> io::Result<()> {
        let state = self.group.lock();
        let socket = state.sockets.iter().flatten().next();
        socket.map_or(Ok(()), |socket| stop_steering(&socket.descriptor()?))
    }
}
