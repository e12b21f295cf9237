//! File operations: reads and writes on the ring, registrations of their memory, and the simulated disk.

pub(super) mod disk;
pub(super) mod operation;
pub(super) mod registration;
