//! Channels between tasks of one worker. They are not `Send`, and use no atomic operations.

pub mod mpsc;
