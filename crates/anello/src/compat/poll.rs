//! Code shared by the trait implementations, which differ in a few names and in the type of the read buffer.

use std::io;
use std::task::Poll;

use crate::net::Connection;

pub(super) fn poll_close(connection: &Connection) -> Poll<io::Result<()>> {
    Poll::Ready(match connection.shutdown() {
        // The peer has reset the connection, so there is nothing to shut down.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        result => result,
    })
}

/// Implements a read trait for one type with a function that has the given buffer and output types. A blanket
/// implementation is not possible, because the traits are foreign.
macro_rules! impl_read {
    ([$($generics:tt)*] $trait:ident for $reader:ty, $read:ident($buffer:ty) -> $output:ty) => {
        impl<$($generics)*> $trait for $reader {
            #[inline]
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: $buffer,
            ) -> Poll<io::Result<$output>> {
                $read(self.connection(), context, buffer)
            }
        }
    };
}

/// Implements a write trait for one type. A flush calls the given method of [`Connection`]; `$close` is the name of the
/// trait's method that closes the stream.
macro_rules! impl_write {
    ([$($generics:tt)*] $trait:ident for $writer:ty, $flush:ident, $close:ident $(, $is_vectored:ident)?) => {
        impl<$($generics)*> $trait for $writer {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.connection().poll_write(&[io::IoSlice::new(bytes)], context)
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.connection().poll_write(slices, context)
            }

            $(fn $is_vectored(&self) -> bool {
                true
            })?

            #[inline]
            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                self.connection().$flush(context)
            }

            fn $close(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                super::poll::poll_close(self.connection())
            }
        }
    };
}

pub(super) use {impl_read, impl_write};
