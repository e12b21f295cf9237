//! The one that hands over.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

use super::wire::{Talk, Word};
use crate::listening::SocketFile;

/// Newcomers that wait for one that is being served.
const BACKLOG: i32 = 16;

/// How long the workers may take to stop or go on.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// Where newcomers ask.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    file: Arc<SocketFile>,
}

/// What is handed over, and who has to stop for it.
pub trait Wares: Send + 'static {
    /// Duplicates of the sockets that requests come from; none when this process accepts no more for good.
    fn sockets(&self) -> io::Result<Vec<OwnedFd>>;
    /// A duplicate of the socket of /metrics, if there is one.
    fn metrics(&self) -> io::Result<Option<TcpListener>>;
    /// Has this process accept no more, for now.
    fn pause(&self, within: Duration) -> io::Result<()>;
    /// Has it accept again.
    fn resume(&self, within: Duration) -> io::Result<()>;
    /// Has it end: another has the sockets.
    fn give_away(&self);
}

impl Door {
    /// Makes a door at a path where there is nothing, for this user alone.
    pub fn make(path: &Path) -> io::Result<Self> {
        let make = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            // The file that bind makes has the mode of the socket, less the umask: at no time may others connect.
            fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            socket.bind(&SockAddr::unix(path)?)?;
            let file = SocketFile::made(path)?;
            socket.listen(BACKLOG)?;
            Ok(Self { listener: OwnedFd::from(socket).into(), file: Arc::new(file) })
        };
        make().map_err(|error: io::Error| {
            io::Error::new(error.kind(), format!("--handover {}: {error}", path.display()))
        })
    }

    /// The door that another server had at this path.
    pub fn taken_over(listener: UnixListener, path: &Path) -> io::Result<Self> {
        Ok(Self { listener, file: Arc::new(SocketFile::of_another(path)?) })
    }

    /// The file, to be held until the process ends.
    pub fn file(&self) -> Arc<SocketFile> {
        Arc::clone(&self.file)
    }

    /// Serves newcomers, by a thread that ends when one has taken over.
    pub fn open(self, wares: impl Wares) -> io::Result<()> {
        thread::Builder::new().name("handover".into()).spawn(move || self.serve(&wares))?;
        Ok(())
    }

    fn serve(self, wares: &impl Wares) {
        loop {
            let handed = self.listener.accept().and_then(|(stream, _)| {
                let sockets = wares.sockets()?;
                if sockets.is_empty() {
                    return Ok(Some(stream));
                }
                hand_over(stream, &sockets, wares, &self.listener)?;
                Ok(None)
            });
            match handed {
                Ok(None) => {
                    self.file.give_away();
                    return wares.give_away();
                }
                Ok(Some(newcomer)) => {
                    // This process ends: whoever asks is to find that nobody is here, and only then that it was not heard.
                    self.file.remove();
                    drop(self.listener);
                    return drop(newcomer);
                }
                Err(error) => {
                    tracing::warn!(%error, "the sockets were not handed over: this process goes on");
                    // The fault may be the door's: it is not to keep a core busy.
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

/// One newcomer, to the end.
fn hand_over(
    stream: UnixStream,
    sockets: &[OwnedFd],
    wares: &impl Wares,
    door: &UnixListener,
) -> io::Result<()> {
    let mut talk = Talk::new(stream)?;
    talk.greet()?;
    for socket in sockets {
        talk.give(Word::Socket, socket)?;
    }
    if let Some(metrics) = wares.metrics()? {
        talk.give(Word::Metrics, &metrics)?;
    }
    talk.give(Word::Door, door)?;
    talk.say(Word::End)?;
    expect(&mut talk, Word::Ready)?;
    let accepted = wares.pause(SETTLES_WITHIN).and_then(|()| {
        talk.say(Word::Stopped)?;
        expect(&mut talk, Word::Accepting)
    });
    if let Err(error) = accepted {
        // Said before it is so, so that the two do not accept at once.
        talk.say(Word::Withdrawn).ok();
        drop(talk);
        wares.resume(SETTLES_WITHIN)?;
        return Err(error);
    }
    if let Err(error) = talk.say(Word::Done) {
        tracing::debug!(%error, "the newcomer has not waited to hear that it has the sockets");
    }
    Ok(())
}

fn expect(talk: &mut Talk, expected: Word) -> io::Result<()> {
    match talk.hear()? {
        word if word == expected => Ok(()),
        word => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the newcomer has said {word:?} instead of {expected:?}"),
        )),
    }
}
