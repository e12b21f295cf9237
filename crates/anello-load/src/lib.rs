//! anello-load
