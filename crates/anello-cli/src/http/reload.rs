//! SIGHUP: certificate and key are read anew, and the log is opened anew, once for all workers.

use std::io;
use std::sync::Arc;
use std::thread;

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use super::Service;

/// SIGHUPs, kept until they are [followed](Self::spawn_handler).
#[derive(Debug)]
pub struct ReloadSignals(Signals);

impl ReloadSignals {
    /// Catches them from now on (`sigaction(2)`), instead of ending by them.
    pub fn install() -> io::Result<Self> {
        Signals::new([SIGHUP]).map(Self)
    }

    /// Does what they ask for, by a thread that ends with the process.
    pub fn spawn_handler(self, service: Arc<Service>) {
        let Self(mut reload_signals) = self;
        let spawned = thread::Builder::new().name("reload".into()).spawn(move || {
            for _ in reload_signals.forever() {
                // A server that is told to end, and has said so, is not to say that it is ready.
                if !service.listening.is_closed() {
                    reload(&service);
                }
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "SIGHUP does nothing: certificates and the log stay as they are");
        }
    }
}

fn reload(service: &Service) {
    service.manager.reloading();
    // Who replaces the folder and then sends the signal hears at once that this is not enough.
    service.directory_watch.check();
    if let Some(log) = &service.log {
        log.reopen();
    }
    if let Some(tls) = &service.tls {
        match service.tls_files.read() {
            Ok(new) => new.iter().for_each(|new| tls.replace(new)),
            Err(error) => tracing::error!(%error, "TLS goes on with the certificate that it has"),
        }
    }
    service.manager.ready(false);
}
