//! What the service manager is told, where there is one (`NOTIFY_SOCKET`, as sd_notify(3) has it).

use sd_notify::NotifyState;

/// The server accepts connections. `took_over` from another process, instead of which the manager is to watch this one.
pub fn ready(took_over: bool) {
    match took_over {
        true => tell(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready]),
        false => tell(&[NotifyState::Ready]),
    }
}

/// The server ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// The server reads something anew, and says that it is ready when it has.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "the service manager is not told of a reload"),
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) cannot be told: {states:?}");
    }
}
