//! anello-bare
