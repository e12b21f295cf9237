//! Control of a simulation: partitions, links, crashes, restarts and signals.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use crate::driver::{HostId, LinkOptions, LinkStatistics, World};
use crate::signal::SignalKind;

/// A handle that controls the hosts and links of a [`Simulation`](super::Simulation), also while it runs.
///
/// A clone can be moved into the code of a client. Links and partitions change immediately. A host crashes or restarts
/// as soon as the running task waits.
///
/// ```
/// use std::time::Duration;
///
/// use anello::net::{TcpListener, TcpStream};
/// use anello::sim::Simulation;
/// use anello::time::{sleep, timeout};
///
/// let mut sim = Simulation::builder().seed(17).build();
/// sim.host("server", async || {
///     let listener = TcpListener::bind("0.0.0.0:80")?;
///     loop {
///         listener.accept().await?.write_all(b"ciao").await?;
///     }
/// });
/// let control = sim.control();
/// sim.client("client", async move {
///     control.partition("client", "server");
///     assert!(timeout(Duration::from_secs(1), TcpStream::connect("server:80")).await.is_err());
///     control.repair("client", "server");
///     assert!(TcpStream::connect("server:80").await?.recv().await?.is_some());
///     control.crash("server");
///     sleep(Duration::from_secs(3)).await;
///     control.restart("server");
///     Ok(())
/// });
/// sim.run()?;
/// # Ok::<(), anello::sim::Error>(())
/// ```
///
/// # Panics
/// All methods that take the name of a host panic if there is no such host.
#[derive(Clone, Debug)]
pub struct Control {
    pub(super) state: Rc<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub seed: u64,
    pub world: Rc<RefCell<World>>,
    pub commands: RefCell<VecDeque<Command>>,
    /// Set while [`Control`] has commands, so that the scheduler need not borrow the queue.
    pub has_commands: Cell<bool>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    Crash(HostId),
    Restart(HostId),
    Signal(HostId, SignalKind),
    /// Starts all hosts that have crashed, except clients.
    RestartAll,
}

impl Control {
    #[track_caller]
    pub(super) fn find(&self, host: &str) -> HostId {
        let found = self.state.world.borrow().find(host);
        found.unwrap_or_else(|| panic!("no host {host:?} in the simulation"))
    }

    #[track_caller]
    fn for_both(&self, one: &str, other: &str, action: impl Fn(&mut World, HostId, HostId)) {
        let (one, other) = (self.find(one), self.find(other));
        let mut world = self.state.world.borrow_mut();
        action(&mut world, one, other);
        action(&mut world, other, one);
    }

    /// Returns the seed of the simulation.
    ///
    /// ```
    /// assert_eq!(anello::sim::Simulation::builder().seed(17).build().seed(), 17);
    /// ```
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.state.seed
    }

    /// Returns the virtual time since the start of the simulation.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.run_for(Duration::from_secs(3))?;
    /// assert_eq!(sim.elapsed(), Duration::from_secs(3));
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.state.world.borrow().now_ns())
    }

    /// Returns a random number that depends only on the seed and on earlier operations. Use it for the decisions of a
    /// test.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let random = || Simulation::builder().seed(17).build().random();
    /// assert_eq!(random(), random());
    /// ```
    #[must_use]
    pub fn random(&self) -> u64 {
        self.state.world.borrow_mut().random().u64(..)
    }

    /// Returns the IPv4 address of a host. Names resolve to this address.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.host("leader", async || Ok(()));
    /// assert_eq!(sim.ipv4("leader"), std::net::Ipv4Addr::new(10, 0, 0, 1));
    /// ```
    #[must_use]
    #[track_caller]
    pub fn ipv4(&self, host: &str) -> Ipv4Addr {
        World::ipv4(self.find(host))
    }

    /// Returns the IPv6 address of a host.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.host("leader", async || Ok(()));
    /// assert_eq!(sim.ipv6("leader").to_string(), "fd00::1");
    /// ```
    #[must_use]
    #[track_caller]
    pub fn ipv6(&self, host: &str) -> Ipv6Addr {
        World::ipv6(self.find(host))
    }

    /// Sets the options of the links between two hosts, in both directions. Packets in transit are not affected.
    ///
    /// ```
    /// # use anello::sim::{LinkOptions, Simulation};
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// # sim.host("b", async || Ok(()));
    /// sim.set_link("a", "b", &LinkOptions::default().loss(100));
    /// ```
    #[track_caller]
    pub fn set_link(&self, one: &str, other: &str, options: &LinkOptions) {
        self.for_both(one, other, |world, from, to| world.set_link(from, to, options.clone()));
    }

    /// Separates two hosts. Packets that would arrive during the partition wait if they belong to a TCP connection, and
    /// are lost if they are datagrams.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// # sim.host("b", async || Ok(()));
    /// sim.partition("a", "b");
    /// ```
    #[track_caller]
    pub fn partition(&self, one: &str, other: &str) {
        self.for_both(one, other, World::cut);
    }

    /// Separates two hosts in one direction: nothing that `from` sends reaches `to`.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// # sim.host("b", async || Ok(()));
    /// sim.partition_one_way("a", "b");
    /// ```
    #[track_caller]
    pub fn partition_one_way(&self, from: &str, to: &str) {
        let (from, to) = (self.find(from), self.find(to));
        self.state.world.borrow_mut().cut(from, to);
    }

    /// Ends a partition in both directions. The packets that have waited arrive immediately.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// # sim.host("b", async || Ok(()));
    /// sim.partition("a", "b");
    /// sim.repair("a", "b");
    /// ```
    #[track_caller]
    pub fn repair(&self, one: &str, other: &str) {
        self.for_both(one, other, World::repair);
    }

    /// Holds all packets between two hosts, including datagrams, until [`release`](Self::release). No connection times
    /// out for this reason.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// # sim.host("b", async || Ok(()));
    /// sim.hold("a", "b");
    /// ```
    #[track_caller]
    pub fn hold(&self, one: &str, other: &str) {
        self.for_both(one, other, World::pause);
    }

    /// Releases the packets between two hosts.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// # sim.host("b", async || Ok(()));
    /// sim.hold("a", "b");
    /// sim.release("a", "b");
    /// ```
    #[track_caller]
    pub fn release(&self, one: &str, other: &str) {
        self.for_both(one, other, World::resume);
    }

    /// Returns the numbers of packets that one host has sent to another.
    ///
    /// ```
    /// use anello::net::UdpSocket;
    /// use anello::sim::{LinkOptions, Simulation};
    ///
    /// let mut sim = Simulation::builder().link(LinkOptions::default().loss(1000)).build();
    /// sim.host("b", async || Ok(()));
    /// sim.client("a", async {
    ///     let socket = UdpSocket::bind("0.0.0.0:0")?;
    ///     socket.send_to(b"ciao", "b:80").await?;
    ///     Ok(())
    /// });
    /// sim.run()?;
    /// let statistics = sim.link_statistics("a", "b");
    /// assert_eq!((statistics.packets, statistics.bytes, statistics.lost), (1, 4, 1));
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn link_statistics(&self, from: &str, to: &str) -> LinkStatistics {
        let (from, to) = (self.find(from), self.find(to));
        *self.state.world.borrow_mut().statistics(from, to)
    }

    /// Crashes a host: its tasks are dropped, and it sends nothing more, not even a FIN. Packets to the host wait or
    /// are lost, as during a partition. Does nothing if the host is down. A client that crashes counts as finished.
    ///
    /// The destructors of the tasks run, so they must not have effects outside of the host.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// sim.crash("a");
    /// ```
    #[track_caller]
    pub fn crash(&self, host: &str) {
        self.push(Command::Crash(self.find(host)));
    }

    /// Starts a host again after a crash, or crashes it and starts it again. Its connections no longer exist: peers
    /// that send on them receive a reset.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// sim.crash("a");
    /// sim.restart("a");
    /// ```
    ///
    /// # Panics
    /// The simulation panics if the host is a client, whose future cannot be created again.
    #[track_caller]
    pub fn restart(&self, host: &str) {
        self.push(Command::Restart(self.find(host)));
    }

    /// Sends a signal to the program of a host, as soon as the running task waits. All [listeners](crate::signal) on the
    /// host receive it. Without a listener, the default action is performed: nothing for SIGCHLD, SIGCONT, SIGURG and
    /// SIGWINCH, as well as for SIGPIPE, which Rust programs ignore; a [crash](Self::crash) for all other signals. Does
    /// nothing if the host is down.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::signal::{SignalKind, signal};
    /// use anello::sim::Simulation;
    ///
    /// let mut sim = Simulation::builder().build();
    /// sim.host("server", async || {
    ///     let mut terminations = signal(SignalKind::terminate())?;
    ///     terminations.recv().await;
    ///     Err(std::io::Error::other("shut down"))
    /// });
    /// sim.run_for(Duration::from_secs(1))?;
    /// sim.signal("server", SignalKind::terminate());
    /// assert_eq!(sim.run_for(Duration::from_secs(1)).unwrap_err().source.to_string(), "shut down");
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if there is no such host, or if the signal stops a process (SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU). Use
    /// [`hold`](Self::hold) to make a host unreachable.
    #[track_caller]
    pub fn signal(&self, host: &str, kind: SignalKind) {
        let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        assert!(
            !stops.contains(&kind.as_raw_value()),
            "cannot send {kind}: stopped processes are not simulated"
        );
        self.push(Command::Signal(self.find(host), kind));
    }

    pub(super) fn push(&self, command: Command) {
        self.state.commands.borrow_mut().push_back(command);
        self.state.has_commands.set(true);
    }

    /// Returns whether a host is running.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// assert!(!sim.is_running("a"), "hosts start when the simulation runs");
    /// ```
    #[must_use]
    #[track_caller]
    pub fn is_running(&self, host: &str) -> bool {
        let host = self.find(host);
        self.state.world.borrow().is_up(host)
    }

    /// Returns the last operations on the network, one per line: time in seconds, host, operation, peer and number of
    /// bytes.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.client("a", async { Ok(()) });
    /// sim.run()?;
    /// assert_eq!(sim.trace(), "     0.000000000  a            start\n");
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn trace(&self) -> String {
        self.state.world.borrow().trace()
    }

    /// Returns a hash of all operations on the network. Two runs with the same seed return the same value; if they do
    /// not, the simulated program makes decisions that do not depend on the seed.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// assert_eq!(Simulation::builder().build().trace_hash(), Simulation::builder().build().trace_hash());
    /// ```
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.state.world.borrow().trace_hash()
    }
}
