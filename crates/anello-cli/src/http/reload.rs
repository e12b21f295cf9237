//! Reload on SIGHUP: reloads the certificate and key and reopens the access log, once for all workers.

use std::io;
use std::sync::Arc;
use std::thread;

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use super::worker::Service;

/// SIGHUP signals, queued until [`spawn_handler`](Self::spawn_handler) is called.
pub struct ReloadSignals(Signals);

impl ReloadSignals {
    /// Installs the SIGHUP handler (`sigaction(2)`), so that the signal no longer terminates the process.
    pub fn install() -> io::Result<Self> {
        Signals::new([SIGHUP]).map(Self)
    }

    /// Handles the signals in a thread that exits with the process.
    pub fn spawn_handler(self, service: Arc<Service>) {
        let Self(mut signals) = self;
        let spawned = thread::Builder::new().name("reload".into()).spawn(move || {
            for _ in signals.forever() {
                // The service manager must not receive READY=1 after STOPPING=1.
                if !service.listening.is_closed() {
                    reload(&service);
                }
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start the reload thread; SIGHUP will have no effect");
        }
    }
}

fn reload(service: &Service) {
    service.manager.reloading();
    // Warns immediately if the document root was replaced, because a reload does not open the new one.
    service.directory_watch.check();
    if let Some(log) = &service.log {
        log.reopen();
    }
    if let Some(tls) = &service.tls {
        match service.flags.tls.read() {
            Ok(new) => new.iter().for_each(|new| tls.replace(new)),
            Err(error) => tracing::error!(%error, "cannot reload the certificate; still using the old one"),
        }
    }
    service.manager.ready(false);
}
