//! Cache of TLS sessions for resumption.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Maximum number of TLS 1.3 tickets, each less than 1 KiB. The limit is high because a ticket can be used only once
/// and all connections may be closed at the same time. Servers issue two or more tickets per handshake.
const MAX_TICKETS: usize = 1 << 15;

/// Session cache for the single server of a load run. The cache in rustls is limited to eight tickets per server.
#[derive(Debug, Default)]
pub(super) struct SessionCache(Mutex<CachedSessions>);

#[derive(Debug, Default)]
struct CachedSessions {
    group: Option<NamedGroup>,
    /// TLS 1.2 session, which any number of connections can resume.
    session: Option<Tls12ClientSessionValue>,
    /// TLS 1.3 tickets, oldest first.
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl SessionCache {
    /// Ignores poisoning because the content is consistent whenever the lock is not held.
    fn lock(&self) -> MutexGuard<'_, CachedSessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for SessionCache {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.lock().session = Some(session);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock().session.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.lock().session = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let tickets = &mut self.lock().tickets;
        if tickets.len() == MAX_TICKETS {
            tickets.pop_front();
        }
        tickets.push_back(ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().tickets.pop_back()
    }
}
