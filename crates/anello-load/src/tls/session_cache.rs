//! Sessions that connections may take up again.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Most tickets of TLS 1.3 that are kept: each may be used once, servers give two or more with a handshake, and all
/// connections of a load may be closed together. Beyond it the oldest are forgotten. A ticket takes less than 1 KiB.
const MAX_TICKETS: usize = 1 << 15;

/// The sessions with the one server of a load. That of rustls keeps eight tickets for each server, however many servers there
/// may be.
#[derive(Default)]
pub(super) struct SessionCache(Mutex<CachedSessions>);

#[derive(Default)]
struct CachedSessions {
    group: Option<NamedGroup>,
    /// Of TLS 1.2, where one serves any number of connections.
    session: Option<Tls12ClientSessionValue>,
    /// Oldest first.
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl SessionCache {
    /// What is kept is whole between any two calls, so that a panic elsewhere does it no harm.
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

impl fmt::Debug for SessionCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sessions").finish_non_exhaustive()
    }
}
