//! Protocol tests that need no I/O.

mod body;
mod chunked;
mod date;
mod decoder;
mod encoded;
mod fields;
mod framing;
mod response;
mod scanner;
mod target;
