//! Random faults, and their end.

use std::time::Duration;

use super::control::{Command, Control};
use crate::driver::{HostId, LinkOptions};
use crate::time::sleep;

impl Control {
    /// Injects random faults for a period of virtual time, then ends all of them ([`heal`](Self::heal)). The seed
    /// determines the faults.
    ///
    /// A fault happens every twentieth of the period on average. It concerns one of `hosts`: a crash, a restart, or a
    /// change to its link with a random other host, in one or both directions. A link is separated
    /// ([`partition`](Self::partition)), holds its packets ([`hold`](Self::hold)), becomes slow and loses packets, or
    /// works again.
    ///
    /// If the future is dropped, the faults that it has injected remain.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::net::{TcpListener, TcpStream};
    /// use anello::sim::{Simulation, check};
    ///
    /// check("server_responds_after_faults", 0..10, |seed| {
    ///     let mut sim = Simulation::builder().seed(seed).build();
    ///     sim.host("server", async || {
    ///         let listener = TcpListener::bind("0.0.0.0:80")?;
    ///         loop {
    ///             listener.accept().await?.write_all(b"ciao").await.ok();
    ///         }
    ///     });
    ///     let control = sim.control();
    ///     sim.client("client", async move {
    ///         control.inject_faults(&["server"], Duration::from_secs(60)).await;
    ///         assert!(control.is_running("server"));
    ///         let mut stream = TcpStream::connect("server:80").await?;
    ///         assert!(stream.recv().await?.is_some());
    ///         Ok(())
    ///     });
    ///     sim.run()
    /// });
    /// ```
    ///
    /// # Panics
    /// Panics if `hosts` is empty, if there is no host with one of the names, or if no runtime is running on this
    /// thread. The simulation panics if one of the hosts is a client and has to be restarted.
    #[track_caller]
    pub fn inject_faults(&self, hosts: &[&str], period: Duration) -> impl Future<Output = ()> + 'static {
        let hosts: Vec<HostId> = hosts.iter().map(|host| self.find(host)).collect();
        assert!(!hosts.is_empty(), "no hosts for faults (name at least one)");
        let control = self.clone();
        async move {
            let end = control.elapsed() + period;
            let max_pause = period / 10;
            loop {
                let pause_ns = control.random_below(max_pause.as_nanos().try_into().unwrap_or(u64::MAX));
                let rest = end.saturating_sub(control.elapsed());
                sleep(Duration::from_nanos(pause_ns).min(rest)).await;
                if control.elapsed() >= end {
                    return control.heal_and_restart().await;
                }
                control.inject_fault(hosts[control.random_below(hosts.len() as u64) as usize]);
            }
        }
    }

    /// Ends all partitions, releases all held packets, and restores the links that
    /// [`inject_faults`](Self::inject_faults) has changed. Restarts all hosts that have crashed, except clients, as soon
    /// as the running task waits.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// # sim.host("b", async || Ok(()));
    /// sim.partition("a", "b");
    /// sim.crash("b");
    /// sim.heal();
    /// # sim.run_for(std::time::Duration::from_secs(1))?;
    /// # assert!(sim.is_running("b"));
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    pub fn heal(&self) {
        self.state.world.borrow_mut().heal(|_| true);
        self.push(Command::RestartAll);
    }

    /// Also waits until the hosts have restarted.
    async fn heal_and_restart(&self) {
        self.heal();
        // The scheduler runs commands between the steps of the hosts, which can consist of several turns.
        while self.state.has_commands.get() {
            sleep(Duration::from_micros(1)).await;
        }
    }

    fn random_below(&self, bound: u64) -> u64 {
        self.state.world.borrow_mut().random().u64(..bound.max(1))
    }

    fn inject_fault(&self, host: HostId) {
        let others = u64::from(self.state.world.borrow().host_count()) - 1;
        let (choice, direction) = (self.random_below(8), self.random_below(3));
        match choice {
            0 => return self.push(Command::Crash(host)),
            1 => return self.push(Command::Restart(host)),
            // There is no other host.
            _ if others == 0 => return,
            _ => {}
        }
        let peer = (u64::from(host) + 1 + self.random_below(others)) % (others + 1);
        let peer = peer as HostId;
        let slow = LinkOptions::default()
            .latency(Duration::from_millis(1)..=Duration::from_millis(1 << self.random_below(10)))
            .loss(self.random_below(200) as u16)
            .bandwidth(Some(1000 << self.random_below(10)));
        let mut world = self.state.world.borrow_mut();
        for (from, to, is_selected) in [(host, peer, direction != 1), (peer, host, direction != 0)] {
            match choice {
                _ if !is_selected => {}
                2 | 3 => world.cut(from, to),
                4 => world.pause(from, to),
                5 => world.degrade(from, to, slow.clone()),
                _ => world.heal(|link| link == (from, to)),
            }
        }
    }
}
