//! Which peers do I/O as anello does on one of its drivers.

use crate::peers::Kind;
use crate::result::ContenderRecord;

/// Whether a peer does I/O as this driver of anello does. A peer that does it in neither way, or does not say how, is
/// compared with all.
pub(super) fn comparable(own: &ContenderRecord, peer: &ContenderRecord) -> bool {
    match (driver_family(own), driver_family(peer)) {
        (Some(own), Some(peer)) => own == peer,
        _ => true,
    }
}

/// Whether a peer is an async runtime that does I/O in another way than this driver of anello.
pub(super) fn is_other_runtime(own: &ContenderRecord, peer: &ContenderRecord) -> bool {
    peer.kind == Some(Kind::Runtime) && !comparable(own, peer)
}

/// Whether a peer does I/O in another way than this driver of anello and is no async runtime.
pub(super) fn is_of_neither(own: &ContenderRecord, peer: &ContenderRecord) -> bool {
    peer.kind != Some(Kind::Runtime) && !comparable(own, peer)
}

/// The kin of a driver: "io_uring" or "epoll"; none if it is neither or unknown.
#[must_use]
pub fn driver_family(record: &ContenderRecord) -> Option<&'static str> {
    let driver = record.driver.as_deref()?;
    ["uring", "epoll"]
        .into_iter()
        .find(|kin| driver.contains(kin))
        .map(|kin| if kin == "uring" { "io_uring" } else { kin })
}
