//! Memory of the driver: receive buffers, and tables with their slots, pages and keys.

pub(super) mod buffer;
pub(super) mod io_slice_cursor;
pub(super) mod key;
pub(crate) mod pages;
mod slots;
pub(super) mod table;
