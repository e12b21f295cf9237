//! Protocol tests that need no I/O.

mod body;
mod chunked;
mod date;
mod decoder;
mod encoded;
mod faults;
mod fields;
mod framing;
mod requests;
mod response;
mod responses;
mod scanner;
mod splits;
mod target;
