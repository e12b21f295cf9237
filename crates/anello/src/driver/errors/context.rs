//! Errors that name the operation and the address, and keep the error number of the system call.

use std::error::Error;
use std::fmt;
use std::io;

/// Payload of an [`io::Error`]. Displays the text, and returns the error of the system call as its source.
#[derive(Debug)]
struct ErrorContext {
    text: String,
    source: io::Error,
}

impl fmt::Display for ErrorContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Error for ErrorContext {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Returns an error of this kind that displays `text` and whose source is `source`.
#[cold]
pub(crate) fn with_text(kind: io::ErrorKind, text: String, source: io::Error) -> io::Error {
    io::Error::new(kind, ErrorContext { text, source })
}

/// Returns an error that displays `operation`, a colon and `source`, and has the kind of `source`.
#[cold]
pub(crate) fn with_context(operation: impl fmt::Display, source: io::Error) -> io::Error {
    with_text(source.kind(), format!("{operation}: {source}"), source)
}

/// Returns the error number of the system call that caused an error, also if the error's message contains an address.
///
/// [`io::Error::raw_os_error`] returns `None` for an error whose message has been extended. This function also examines
/// the sources of such an error.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::net::{TcpListener, raw_os_error};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let error = TcpListener::bind(address).unwrap_err();
/// assert_eq!(raw_os_error(&error), Some(98)); // EADDRINUSE
/// assert!(error.to_string().starts_with(&format!("cannot bind {address}: ")));
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn raw_os_error(error: &io::Error) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(errno) = error.raw_os_error() {
            return Some(errno);
        }
        next = error.get_ref()?.source()?.downcast_ref();
    }
    None
}

/// Returns the error of a read that reached EOF before it had filled the caller's buffer of `length` bytes.
#[cold]
pub(crate) fn unexpected_eof(filled: usize, length: usize) -> io::Error {
    let message = format!("unexpected EOF after {filled} of {length} bytes");
    io::Error::new(io::ErrorKind::UnexpectedEof, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_os_error_is_found_behind_every_context() {
        let refused = || io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let once = with_context("cannot connect to 127.0.0.1:1", refused());
        assert_eq!(once.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(once.to_string(), format!("cannot connect to 127.0.0.1:1: {}", refused()));
        let twice = with_context("cannot start", once);
        assert_eq!((twice.raw_os_error(), raw_os_error(&twice)), (None, Some(libc::ECONNREFUSED)));
        assert_eq!(raw_os_error(&refused()), Some(libc::ECONNREFUSED));
        assert_eq!(raw_os_error(&io::Error::other("no number")), None);
        assert_eq!(raw_os_error(&io::ErrorKind::TimedOut.into()), None);
    }
}
