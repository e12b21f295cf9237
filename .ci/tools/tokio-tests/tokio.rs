//! The names of tokio on anello, for the tests of tokio.

pub use anello::{spawn, task_local};
pub use tokio_macros::{main, test};
pub use tokio_real::{join, pin, select, try_join};

pub mod runtime {
    pub use anello::{EnterGuard, Handle, Runtime, Runtime as LocalRuntime, RuntimeMetrics, TryCurrentError};
    use anello::{DriverKind, sim::SimOptions};

    #[derive(Default)]
    pub struct LocalOptions;

    /// Accepts the settings that are always in force on anello, and the number of threads, which is 1.
    pub struct Builder(DriverKind);

    macro_rules! accept {
        ($($setting:ident($($kind:ty)?))*) => {
            impl Builder {
                $(pub fn $setting(&mut self $(, _: $kind)?) -> &mut Self { self })*
            }
        };
    }
    accept!(enable_all() enable_io() enable_time() worker_threads(usize) max_blocking_threads(usize));

    impl Builder {
        pub fn new_current_thread() -> Self { Self(DriverKind::Auto) }
        pub fn new_multi_thread() -> Self { Self(DriverKind::Auto) }
        pub fn start_paused(&mut self, is_paused: bool) -> &mut Self {
            self.0 = if is_paused { DriverKind::Sim(SimOptions::new(1)) } else { DriverKind::Auto };
            self
        }
        pub fn build(&mut self) -> std::io::Result<Runtime> { Runtime::builder().driver(self.0.clone()).build() }
        pub fn build_local(&mut self, _: LocalOptions) -> std::io::Result<Runtime> { self.build() }
    }

    pub fn is_rt_shutdown_err(error: &std::io::Error) -> bool { error.kind() == std::io::ErrorKind::NotConnected }
}

pub mod task {
    pub use anello::{spawn as spawn_local, task::*};
    pub mod coop {
        pub use anello::task::{consume_budget, cooperative, has_budget_remaining, unconstrained};
    }
    pub mod futures {
        pub use anello::task::TaskLocalFuture;
    }

    use std::future::Future;

    /// Every runtime of anello is one.
    #[derive(Debug, Default)]
    pub struct LocalSet;

    impl LocalSet {
        pub fn new() -> Self { Self }
        pub async fn run_until<F: Future>(&self, future: F) -> F::Output { future.await }
        #[track_caller]
        pub fn block_on<F: Future>(&self, runtime: &anello::Runtime, future: F) -> F::Output {
            runtime.block_on(future)
        }
        #[track_caller]
        pub fn spawn_local<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
            anello::spawn(future)
        }
    }
}

pub mod time {
    pub use anello::time::*;
    pub use std::time::Duration;
}

pub use anello::{fs, process, sync};

pub mod signal {
    pub use anello::signal::{self as unix, ctrl_c};
}

pub mod io {
    pub use anello::io::{self as unix, *};
    pub use std::io::{Error, ErrorKind, Result, SeekFrom};
    pub use tokio_real::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncSeek, AsyncSeekExt};
    pub use tokio_real::io::{AsyncWrite, AsyncWriteExt, ReadBuf};
}

pub mod net {
    pub use anello::net::{TcpStream, ToSocketAddrs, UnixDatagram, UnixStream};
    use std::io::Result;
    use std::net::SocketAddr;
    use std::os::fd::AsFd;
    use std::task::{Context, Poll};
    use tokio_real::io::ReadBuf;

    macro_rules! halves {
        ($stream:ident) => {
            pub type OwnedReadHalf = anello::net::OwnedReadHalf<super::$stream>;
            pub type OwnedWriteHalf = anello::net::OwnedWriteHalf<super::$stream>;
            pub type ReadHalf<'a> = anello::net::ReadHalf<&'a super::$stream>;
            pub type WriteHalf<'a> = anello::net::WriteHalf<&'a super::$stream>;
            pub type ReuniteError = anello::net::ReuniteError<super::$stream>;
        };
    }

    pub mod tcp {
        halves!(TcpStream);
    }

    pub mod unix {
        halves!(UnixStream);
        pub use anello::net::{PeerCredentials as UCred, pipe};
        pub use std::os::unix::net::SocketAddr;
    }

    /// A type that contains the one of anello and has constructors of its own.
    macro_rules! contain {
        ($name:ident $($function:ident($($argument:ident: $kind:ty)?))*) => {
            #[derive(Debug)]
            pub struct $name(anello::net::$name);

            impl std::ops::Deref for $name {
                type Target = anello::net::$name;
                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }

            impl $name {
                $(#[track_caller]
                pub fn $function($($argument: $kind)?) -> Result<Self> {
                    anello::net::$name::$function($($argument)?).map(Self)
                })*
            }
        };
    }
    contain!(TcpSocket new_v4() new_v6());
    contain!(TcpListener from_std(socket: std::net::TcpListener));
    contain!(UdpSocket from_std(socket: std::net::UdpSocket));
    contain!(UnixListener from_std(socket: std::os::unix::net::UnixListener) bind_addr(address: &unix::SocketAddr));

    macro_rules! accept {
        ($listener:ident, $stream:ident, $address:ty, $std:ty) => {
            impl $listener {
                pub async fn accept(&self) -> Result<($stream, $address)> {
                    let stream = self.0.accept().await?;
                    let peer = stream.peer_addr()?;
                    Ok((stream, peer))
                }
                pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<Result<($stream, $address)>> {
                    let accepted = self.0.poll_accept(context);
                    accepted.map(|stream| stream.and_then(|stream| stream.peer_addr().map(|peer| (stream, peer))))
                }
                pub fn into_std(self) -> Result<$std> { self.0.try_clone_to_owned().map(Into::into) }
            }
        };
    }
    accept!(TcpListener, TcpStream, SocketAddr, std::net::TcpListener);
    accept!(UnixListener, UnixStream, unix::SocketAddr, std::os::unix::net::UnixListener);

    impl TcpSocket {
        pub async fn connect(self, peer: SocketAddr) -> Result<TcpStream> { self.0.connect(peer).await }
        pub fn listen(self, backlog: u32) -> Result<TcpListener> {
            let socket = socket2::Socket::from(self.0.as_fd().try_clone_to_owned()?);
            socket.listen(backlog as i32)?;
            TcpListener::from_std(socket.into())
        }
    }

    impl TcpListener {
        pub async fn bind(address: impl ToSocketAddrs) -> Result<Self> {
            anello::net::TcpListener::bind_host(address).await.map(Self)
        }
    }

    impl UnixListener {
        #[track_caller]
        pub fn bind(path: impl AsRef<std::path::Path>) -> Result<Self> {
            anello::net::UnixListener::bind(path).map(Self)
        }
    }

    impl UdpSocket {
        pub async fn bind(address: impl ToSocketAddrs) -> Result<Self> {
            anello::net::UdpSocket::bind_host(address).await.map(Self)
        }
        pub fn into_std(self) -> Result<std::net::UdpSocket> { self.0.into_std() }
        pub fn poll_recv(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
            self.0.poll_recv(context, buffer.initialize_unfilled()).map_ok(|count| buffer.advance(count))
        }
        pub fn poll_recv_from(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<SocketAddr>> {
            let received = self.0.poll_recv_from(context, buffer.initialize_unfilled());
            received.map_ok(|(count, from)| (buffer.advance(count), from).1)
        }
        pub fn poll_peek_from(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<SocketAddr>> {
            let received = self.0.poll_peek_from(context, buffer.initialize_unfilled());
            received.map_ok(|(count, from)| (buffer.advance(count), from).1)
        }
    }

    pub async fn lookup_host(host: impl ToSocketAddrs) -> Result<impl Iterator<Item = SocketAddr>> {
        anello::net::lookup_host(host).await.map(Vec::into_iter)
    }
}
