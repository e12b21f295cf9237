//! Methods of both ends of a pipe.

/// Implements construction from descriptors, conversion into descriptors, and waiting.
macro_rules! common {
    ($name:ident, $constructor:ident, $access:ident) => {
        impl $name {
            /// Takes a descriptor of a pipe or FIFO, and makes it non-blocking.
            ///
            /// The mode is shared with all duplicates of the descriptor, in this and other processes.
            ///
            /// # Errors
            /// Returns `InvalidInput` if the file is not a pipe or FIFO, or is not open in this direction. Returns
            /// `Unsupported` on the simulated driver.
            ///
            /// # Panics
            /// Panics if no runtime is running on this thread.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::pipe::{Receiver, Sender};
            /// let (reader, writer) = std::io::pipe()?;
            /// let receiver = Receiver::from_owned_fd(reader.into())?;
            /// let sender = Sender::from_owned_fd(writer.into())?;
            /// sender.write_all(b"ciao").await?;
            /// assert_eq!(receiver.read(&mut [0; 16]).await?, 4);
            /// # }
            /// ```
            #[track_caller]
            pub fn from_owned_fd(descriptor: OwnedFd) -> io::Result<Self> {
                super::check::check_descriptor(&descriptor, rustix::fs::OFlags::$access)?;
                Self::from_owned_fd_unchecked(descriptor)
            }

            /// Takes a descriptor like [`from_owned_fd`](Self::from_owned_fd), without checking its type.
            ///
            /// # Errors
            /// Returns an error if the kernel cannot poll the file, or on the simulated driver.
            ///
            /// # Panics
            /// Panics if no runtime is running on this thread.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::pipe::{Receiver, Sender};
            /// # use std::os::unix::net::UnixStream;
            /// // A socket is not a pipe, but is read and written in the same way.
            /// let (one, other) = UnixStream::pair()?;
            /// assert!(Sender::from_owned_fd(one.try_clone()?.into()).is_err());
            /// let sender = Sender::from_owned_fd_unchecked(one.into())?;
            /// let receiver = Receiver::from_owned_fd_unchecked(other.into())?;
            /// sender.write_all(b"ciao").await?;
            /// assert_eq!(receiver.read(&mut [0; 16]).await?, 4);
            /// # }
            /// ```
            #[track_caller]
            pub fn from_owned_fd_unchecked(descriptor: OwnedFd) -> io::Result<Self> {
                PipeEnd::$constructor(descriptor).map(Self)
            }

            /// Takes a file that is a pipe or FIFO. See [`from_owned_fd`](Self::from_owned_fd).
            ///
            /// # Errors
            /// See [`from_owned_fd`](Self::from_owned_fd).
            ///
            /// # Panics
            /// Panics if no runtime is running on this thread.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::pipe::{Receiver, Sender};
            /// # use rustix::fs::{CWD, FileType, Mode};
            /// # let directory = tempfile::tempdir()?;
            /// # let path = directory.path().join("fifo");
            /// rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0)?;
            /// let file = std::fs::File::options().read(true).write(true).open(&path)?;
            /// let sender = Sender::from_file(file.try_clone()?)?;
            /// let receiver = Receiver::from_file(file)?;
            /// sender.write_all(b"ciao").await?;
            /// assert_eq!(receiver.read(&mut [0; 16]).await?, 4);
            /// # }
            /// ```
            #[track_caller]
            pub fn from_file(file: std::fs::File) -> io::Result<Self> {
                Self::from_owned_fd(file.into())
            }

            /// Takes a file like [`from_file`](Self::from_file), without checking its type.
            ///
            /// # Errors
            /// See [`from_owned_fd_unchecked`](Self::from_owned_fd_unchecked).
            ///
            /// # Panics
            /// Panics if no runtime is running on this thread.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::net::pipe::{Receiver, Sender};
            /// # use std::os::fd::OwnedFd;
            /// // A socket is not a pipe, but is read and written in the same way.
            /// let (one, other) = std::os::unix::net::UnixStream::pair()?;
            /// let sender = Sender::from_file_unchecked(OwnedFd::from(one).into())?;
            /// let receiver = Receiver::from_file_unchecked(OwnedFd::from(other).into())?;
            /// sender.write_all(b"ciao").await?;
            /// assert_eq!(receiver.read(&mut [0; 16]).await?, 4);
            /// # }
            /// ```
            #[track_caller]
            pub fn from_file_unchecked(file: std::fs::File) -> io::Result<Self> {
                Self::from_owned_fd_unchecked(file.into())
            }

            /// Returns the descriptor in blocking mode.
            ///
            /// # Errors
            /// Returns the error of `ioctl(2)`, or of `fcntl(2)` if a poll in flight requires a duplicate.
            ///
            /// ```
            /// # anello::example! {
            /// # use std::io::{Read, Write};
            /// # use std::fs::File;
            /// let (sender, receiver) = anello::net::pipe::pipe()?;
            /// let mut sender = File::from(sender.into_blocking_fd()?);
            /// let mut receiver = File::from(receiver.into_blocking_fd()?);
            /// let reading = std::thread::spawn(move || receiver.read(&mut [0; 16]));
            /// sender.write_all(b"ciao")?;
            /// assert_eq!(reading.join().expect("the thread does not panic")?, 4);
            /// # }
            /// ```
            pub fn into_blocking_fd(self) -> io::Result<OwnedFd> {
                self.0.into_blocking()
            }

            /// Returns the descriptor in non-blocking mode.
            ///
            /// # Errors
            /// Returns the error of `fcntl(2)` if a poll in flight requires a duplicate.
            ///
            /// ```
            /// # anello::example! {
            /// # use std::io::{ErrorKind, Read, Write};
            /// # use std::fs::File;
            /// let (sender, receiver) = anello::net::pipe::pipe()?;
            /// let mut receiver = File::from(receiver.into_nonblocking_fd()?);
            /// assert_eq!(receiver.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
            /// File::from(sender.into_nonblocking_fd()?).write_all(b"ciao")?;
            /// assert_eq!(receiver.read(&mut [0; 16])?, 4);
            /// # }
            /// ```
            pub fn into_nonblocking_fd(self) -> io::Result<OwnedFd> {
                self.0.into_nonblocking()
            }

            /// Waits until the pipe is ready for the given interest. Cancel-safe.
            ///
            /// # Errors
            /// Returns an error if the interest is for the other direction, or the runtime has been shut down.
            ///
            /// ```
            /// # anello::example! {
            /// # use anello::io::Interest;
            /// let (sender, receiver) = anello::net::pipe::pipe()?;
            /// assert!(sender.ready(Interest::WRITABLE).await?.is_writable());
            /// drop(sender);
            /// assert!(receiver.ready(Interest::READABLE).await?.is_readable());
            /// assert_eq!(receiver.try_read(&mut [0; 16])?, 0);
            /// # }
            /// ```
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                Ok(self.0.registration().ready(interest).await?.ready)
            }

            pub(crate) fn pipe(&self) -> &PipeEnd {
                &self.0
            }
        }

        /// See [`from_owned_fd`](Self::from_owned_fd).
        impl TryFrom<OwnedFd> for $name {
            type Error = io::Error;

            #[track_caller]
            fn try_from(descriptor: OwnedFd) -> io::Result<Self> {
                Self::from_owned_fd(descriptor)
            }
        }

        impl AsFd for $name {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.as_fd()
            }
        }

        impl AsRawFd for $name {
            fn as_raw_fd(&self) -> RawFd {
                self.as_fd().as_raw_fd()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.debug_tuple(stringify!($name)).field(&self.as_raw_fd()).finish()
            }
        }
    };
}

pub(super) use common;
