//! Macros for the trait implementations, which differ in a few names and in the type of the read buffer. Blanket
//! implementations are not possible, because the traits are foreign.

/// Implements a read trait with the function `$read`, which is called with the given source of the reader and has the
/// given types of buffer and output.
macro_rules! impl_read {
    (
        $trait:path, [$($generics:tt)*] $type:ty, |$reader:ident| $source:expr,
        $read:ident($buffer:ty) -> $output:ty
    ) => {
        impl<$($generics)*> $trait for $type {
            #[inline]
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: $buffer,
            ) -> Poll<io::Result<$output>> {
                let $reader = self.get_mut();
                $read($source, context, buffer)
            }
        }
    };
}

/// Implements a write trait. `$close` is the name of its method that closes the writer, and `$is_vectored` that of the
/// method that returns `vectored`.
macro_rules! impl_write {
    (
        $trait:path, $close:ident $(, $is_vectored:ident)?;
        [$($generics:tt)*] $type:ty, |$writer:ident, $context:ident, $slices:ident| $write:expr,
        vectored: $vectored:literal, flush: $flush:expr, close: $closed:expr
    ) => {
        #[allow(unused_variables, reason = "not all writers are waited for")]
        impl<$($generics)*> $trait for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
            }

            #[inline]
            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                $context: &mut Context<'_>,
                $slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let $writer = self.get_mut();
                $write
            }

            $(fn $is_vectored(&self) -> bool {
                $vectored
            })?

            #[inline]
            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                $context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                let $writer = self.get_mut();
                $flush
            }

            fn $close(self: std::pin::Pin<&mut Self>, $context: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $writer = self.get_mut();
                $closed
            }
        }
    };
}

/// Implements the write traits of futures and tokio.
macro_rules! impl_writes {
    ($($writer:tt)*) => {
        #[cfg(feature = "compat-futures-io")]
        $crate::compat::poll::impl_write!(futures_io::AsyncWrite, poll_close; $($writer)*);
        #[cfg(feature = "compat-tokio")]
        $crate::compat::poll::impl_write!(tokio::io::AsyncWrite, poll_shutdown, is_write_vectored; $($writer)*);
    };
}

/// Implements the write trait of hyper.
macro_rules! impl_hyper_write {
    ($($writer:tt)*) => {
        #[cfg(feature = "compat-hyper")]
        $crate::compat::poll::impl_write!(hyper::rt::Write, poll_shutdown, is_write_vectored; $($writer)*);
    };
}

#[allow(unused_imports, reason = "depends on the features")]
pub(super) use {impl_hyper_write, impl_read, impl_write, impl_writes};
