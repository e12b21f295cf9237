//! The `anello` command.
fn main() {}
