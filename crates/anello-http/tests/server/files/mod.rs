//! Files, over HTTP/1.1 and HTTP/2.

#[cfg(feature = "compression")]
mod compressed;
mod contents;
mod descriptors;
mod faults;
mod seccomp;
