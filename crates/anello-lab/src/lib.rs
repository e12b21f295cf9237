//! anello-lab
