//! The sum over all tags.

use anello_load::formats::hdr_log::UNCORRECTED;
use anello_load::merge::{Sum, TagSum};

/// Returns the sum of all tags except `uncorrected`, which contains the same requests again. Returns `None` if there is
/// only one other tag.
pub fn all_tags(sums: &[TagSum]) -> Option<Sum> {
    let mut counted = sums.iter().filter(|sum| sum.tag.as_deref() != Some(UNCORRECTED));
    let mut all = counted.next()?.total.clone();
    let mut others = counted.peekable();
    others.peek()?;
    others.try_for_each(|other| all.add(&other.total)).ok()?;
    Some(all)
}
