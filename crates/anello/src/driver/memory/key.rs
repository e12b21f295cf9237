//! The key of an entry in a table.

/// Mask of the generation bits that fit into a token.
pub(crate) const GENERATION_MASK: u32 = (1 << 28) - 1;

/// A slot of a table and the generation of its occupant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub index: u32,
    pub generation: u32,
}
