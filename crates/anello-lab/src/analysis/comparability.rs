//! Which peers do I/O as anello does on one of its drivers.

use crate::peers::Kind;
use crate::result::ContenderRecord;

/// Whether a peer does I/O as this driver of anello does. A peer that does it in neither way, or does not say how, is
/// compared with all.
pub(super) fn does_same_io(own: &ContenderRecord, peer: &ContenderRecord) -> bool {
    match (driver_family(own), driver_family(peer)) {
        (Some(own), Some(peer)) => own == peer,
        _ => true,
    }
}

/// Whether a peer is an async runtime that does I/O in another way than this driver of anello.
pub(super) fn is_other_runtime(own: &ContenderRecord, peer: &ContenderRecord) -> bool {
    peer.kind == Some(Kind::Runtime) && !does_same_io(own, peer)
}

/// Whether a peer does I/O in another way than this driver of anello and is no async runtime.
pub(super) fn is_other_server(own: &ContenderRecord, peer: &ContenderRecord) -> bool {
    peer.kind != Some(Kind::Runtime) && !does_same_io(own, peer)
}

/// The family of a driver: "io_uring" or "epoll"; none if it is neither or unknown.
#[must_use]
pub fn driver_family(record: &ContenderRecord) -> Option<&'static str> {
    let driver = record.driver.as_deref()?;
    ["uring", "epoll"]
        .into_iter()
        .find(|family| driver.contains(family))
        .map(|family| if family == "uring" { "io_uring" } else { family })
}
