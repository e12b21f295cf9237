//! anello
