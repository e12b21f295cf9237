//! The protocol of HTTP/1.1 (RFC 9110, RFC 9112), without I/O and without a clock.
