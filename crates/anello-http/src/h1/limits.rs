//! How much of a request is accepted.

/// Limits of one connection's requests.
///
/// ```
/// use anello_http::h1::Limits;
///
/// let limits = Limits { max_body_bytes: 1024, ..Limits::default() };
/// assert_eq!(limits.max_fields, 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest request line, without its line end; by default 8 KiB. More is answered with 414.
    pub max_request_line_bytes: usize,
    /// Longest head: request line and fields with all line ends; by default 32 KiB. More is answered with 431. Greater
    /// values than 1 GiB count as that.
    pub max_head_bytes: usize,
    /// Most fields of a head; by default 100. More are answered with 431.
    pub max_fields: usize,
    /// Longest body, without what stands around chunks; by default 16 MiB. More is answered with 413: at the head if it
    /// tells the length, else at the chunk that is too much.
    pub max_body_bytes: u64,
    /// Most bytes of chunk extensions of one body, all chunks together; by default 4 KiB. More are answered with 400.
    pub max_chunk_extension_bytes: usize,
    /// Longest trailer section, with all line ends; by default 8 KiB. More is answered with 431. Greater values than
    /// 1 GiB count as that.
    pub max_trailer_bytes: usize,
    /// Most fields of a trailer section; by default 32. More are answered with 431.
    pub max_trailer_fields: usize,
    /// Most requests of a connection, at least one; by default 1,000,000. The last one does not keep the connection
    /// alive, whatever it says.
    pub max_requests_per_connection: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_request_line_bytes: 8 * 1024,
            max_head_bytes: 32 * 1024,
            max_fields: 100,
            max_body_bytes: 16 * 1024 * 1024,
            max_chunk_extension_bytes: 4 * 1024,
            max_trailer_bytes: 8 * 1024,
            max_trailer_fields: 32,
            max_requests_per_connection: 1_000_000,
        }
    }
}

impl Limits {
    /// With lengths that places in a head can be counted with in 32 bits, and at least one request.
    pub(super) fn clamped(self) -> Self {
        const MAX: usize = 1 << 30;
        Self {
            max_head_bytes: self.max_head_bytes.min(MAX),
            max_trailer_bytes: self.max_trailer_bytes.min(MAX),
            max_requests_per_connection: self.max_requests_per_connection.max(1),
            ..self
        }
    }
}
