//! Classification of peers by their kind of I/O, relative to an anello driver.

use crate::plan::contender::Kind;
use crate::result::ContenderRecord;

/// Returns `true` if the peer uses the same kind of I/O as the anello contender `own`. A peer whose driver is unknown
/// or in neither family is compared with every anello contender.
pub(super) fn does_same_io(own: &ContenderRecord, peer: &ContenderRecord) -> bool {
    match (driver_family(own), driver_family(peer)) {
        (Some(own), Some(peer)) => own == peer,
        _ => true,
    }
}

/// Returns `true` if the peer is an async runtime with a different kind of I/O than `own`.
pub(super) fn is_other_runtime(own: &ContenderRecord, peer: &ContenderRecord) -> bool {
    peer.kind == Some(Kind::Runtime) && !does_same_io(own, peer)
}

/// Returns `true` if the peer uses a different kind of I/O than `own` and is not an async runtime.
pub(super) fn is_other_server(own: &ContenderRecord, peer: &ContenderRecord) -> bool {
    peer.kind != Some(Kind::Runtime) && !does_same_io(own, peer)
}

/// Returns the driver family of a contender, "io_uring" or "epoll". `None` if it is unknown or neither.
pub fn driver_family(record: &ContenderRecord) -> Option<&'static str> {
    let driver = record.driver.as_deref()?;
    ["uring", "epoll"]
        .into_iter()
        .find(|family| driver.contains(family))
        .map(|family| if family == "uring" { "io_uring" } else { family })
}
