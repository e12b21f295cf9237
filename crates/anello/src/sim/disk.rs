//! Disks of the hosts.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::control::Control;
use crate::driver::CrashLoss;

impl Control {
    /// Sets the time that each file operation of a host takes. Each operation takes a random time in the range.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use anello::sim::Simulation;
    /// # let mut sim = Simulation::builder().build();
    /// # sim.host("a", async || Ok(()));
    /// sim.set_disk_delay("a", Duration::from_millis(5)..=Duration::from_millis(50));
    /// ```
    #[track_caller]
    pub fn set_disk_delay(&self, host: &str, delay: RangeInclusive<Duration>) {
        let host = self.find(host);
        self.state.world.borrow_mut().set_disk_delay(host, delay);
    }

    /// Sets the rate, in per mille, at which file operations of a host fail with `EIO` instead of being performed. Applies
    /// to [`fs`](crate::fs), except functions passed to
    /// [`fs::spawn_file_operation`](crate::fs::spawn_file_operation). The default is 0.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.client("a", async {
    ///     let error = anello::fs::read("/proc/version").await.unwrap_err();
    ///     assert_eq!(error.to_string(), "cannot read /proc/version: Input/output error (os error 5)");
    ///     Ok(())
    /// });
    /// sim.set_disk_errors("a", 1000);
    /// sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[track_caller]
    pub fn set_disk_errors(&self, host: &str, per_mille: u16) {
        let host = self.find(host);
        self.state.world.borrow_mut().set_disk_errors(host, per_mille);
    }

    /// Sets what the next crashes of a host lose of the changes to files that it makes from now on. The default is
    /// [`CrashLoss::Nothing`].
    ///
    /// A write is lost completely, in sectors of 512 bytes, or not at all, and so is a change of the length of a file;
    /// the seed decides. [`File::sync_all`](crate::fs::File::sync_all) and
    /// [`File::sync_data`](crate::fs::File::sync_data) make the changes to a file permanent, as does writing to a file
    /// opened with `O_SYNC` or `O_DSYNC`. With [`CrashLoss::DataAndNames`], a new, renamed or removed file can also be
    /// lost, renamed back or restored, unless its directory has been opened and synced; of the changes to a directory,
    /// the first ones survive. Symbolic links, removed directories, and what functions passed to
    /// [`fs::spawn_file_operation`](crate::fs::spawn_file_operation) change are not lost.
    ///
    /// The following log confirms entries that it has not synced. The simulation finds it:
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::rc::Rc;
    /// use std::time::Duration;
    ///
    /// use anello::fs::OpenOptions;
    /// use anello::sim::{CrashLoss, Simulation};
    /// use anello::time::sleep;
    ///
    /// /// Returns whether the log has lost an entry that it had confirmed.
    /// fn loses_entries(seed: u64, syncs: bool) -> Result<bool, anello::sim::Error> {
    ///     let directory = tempfile::tempdir().expect("a directory");
    ///     let (path, confirmed) = (directory.path().join("log"), Rc::new(Cell::new(0)));
    ///     let (log_path, log_confirmed) = (path.clone(), Rc::clone(&confirmed));
    ///     let mut sim = Simulation::builder().seed(seed).build();
    ///     sim.host("log", move || {
    ///         let (path, confirmed) = (log_path.clone(), Rc::clone(&log_confirmed));
    ///         async move {
    ///             let file = OpenOptions::new().append(true).create(true).open(path).await?;
    ///             loop {
    ///                 file.write_all(b"entry\n").await?;
    ///                 file.flush().await?;
    ///                 if syncs {
    ///                     file.sync_data().await?;
    ///                 }
    ///                 confirmed.set(confirmed.get() + 1);
    ///                 sleep(Duration::from_millis(10)).await;
    ///             }
    ///         }
    ///     });
    ///     sim.set_crash_loss("log", CrashLoss::Data);
    ///     sim.run_for(Duration::from_millis(55))?;
    ///     sim.crash("log");
    ///     sim.run_for(Duration::from_millis(1))?;
    ///     let log = std::fs::read(path).expect("a log");
    ///     let entries = log.chunks(6).take_while(|entry| entry == b"entry\n").count();
    ///     Ok(entries < confirmed.get())
    /// }
    ///
    /// for seed in 0..10 {
    ///     assert!(!loses_entries(seed, true)?);
    /// }
    /// assert!((0..10).any(|seed| loses_entries(seed, false).expect("a run")));
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if there is no such host.
    #[track_caller]
    pub fn set_crash_loss(&self, host: &str, loss: CrashLoss) {
        let host = self.find(host);
        self.state.world.borrow_mut().set_crash_loss(host, loss);
    }
}
