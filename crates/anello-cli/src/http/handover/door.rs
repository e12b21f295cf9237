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
    /// The file of the socket that requests come from, if it has one.
    fn file(&self) -> Option<&SocketFile>;
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
            match self.listener.accept().and_then(|(stream, _)| self.meet(stream, wares)) {
                Ok(None) => return wares.give_away(),
                Ok(Some(newcomer)) => {
                    // This process ends: whoever asks is to find that nobody is here, and only then that it was not heard.
                    self.files(wares).for_each(SocketFile::remove);
                    drop(self.listener);
                    return drop(newcomer);
                }
                Err(error) => {
                    tracing::warn!(%error, "the sockets were not handed over: this process goes on");
                    // Unless it was told to end meanwhile: then the files have been left for the newcomer.
                    if wares.sockets().is_ok_and(|sockets| sockets.is_empty()) {
                        self.files(wares).for_each(SocketFile::remove);
                    }
                    // The fault may be the door's: it is not to keep a core busy.
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Serves a newcomer. It is returned unheard when this process accepts no more for good.
    fn meet(&self, newcomer: UnixStream, wares: &impl Wares) -> io::Result<Option<UnixStream>> {
        // Before the look at the sockets: a process that is told to end after that leaves the files to the newcomer.
        let lent = Lent::of(self.files(wares));
        let sockets = wares.sockets()?;
        if sockets.is_empty() {
            return Ok(Some(newcomer));
        }
        hand_over(Talk::new(newcomer)?, &sockets, wares, &self.listener, lent)?;
        Ok(None)
    }

    /// The files that go over: that of the door, and that of the sockets, if they have one.
    fn files<'a>(&'a self, wares: &'a impl Wares) -> impl Iterator<Item = &'a SocketFile> {
        wares.file().into_iter().chain([&*self.file])
    }
}

/// Files that are a newcomer's for now: who ends leaves them alone. They are this process's again when this is dropped.
struct Lent<'a>(Vec<&'a SocketFile>);

impl<'a> Lent<'a> {
    /// Those of them that are this process's.
    fn of(files: impl Iterator<Item = &'a SocketFile>) -> Self {
        Self(files.filter(|file| file.give_away()).collect())
    }

    /// They are the newcomer's for good.
    fn give(mut self) {
        self.0.clear();
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| file.claim());
    }
}

/// One newcomer, to the end.
fn hand_over(
    mut talk: Talk,
    sockets: &[OwnedFd],
    wares: &impl Wares,
    door: &UnixListener,
    lent: Lent<'_>,
) -> io::Result<()> {
    talk.greet()?;
    if let Err(error) = agree(&mut talk, sockets, wares, door) {
        drop(lent);
        // Said before it is so, so that the two do not accept at once; and always said: a newcomer that finds nobody here
        // takes this process for dead.
        talk.say(Word::Withdrawn).ok();
        drop(talk);
        wares.resume(SETTLES_WITHIN)?;
        return Err(error);
    }
    lent.give();
    if let Err(error) = talk.say(Word::Done) {
        tracing::debug!(%error, "the newcomer has not waited to hear that it has the sockets");
    }
    Ok(())
}

/// Gives everything, stops accepting, and hears that the newcomer accepts.
fn agree(talk: &mut Talk, sockets: &[OwnedFd], wares: &impl Wares, door: &UnixListener) -> io::Result<()> {
    for socket in sockets {
        talk.give(Word::Socket, socket)?;
    }
    if let Some(metrics) = wares.metrics()? {
        talk.give(Word::Metrics, &metrics)?;
    }
    talk.give(Word::Door, door)?;
    talk.say(Word::End)?;
    expect(talk, Word::Ready)?;
    wares.pause(SETTLES_WITHIN)?;
    talk.say(Word::Stopped)?;
    expect(talk, Word::Accepting)
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What was asked of a server.
    #[derive(Default)]
    struct Asked(Mutex<Vec<&'static str>>);

    impl Asked {
        fn note(&self, what: &'static str) -> io::Result<()> {
            self.0.lock().unwrap().push(what);
            Ok(())
        }
    }

    impl Wares for Asked {
        fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
            Ok(Vec::new())
        }
        fn file(&self) -> Option<&SocketFile> {
            None
        }
        fn metrics(&self) -> io::Result<Option<TcpListener>> {
            Ok(None)
        }
        fn pause(&self, _: Duration) -> io::Result<()> {
            self.note("pause")
        }
        fn resume(&self, _: Duration) -> io::Result<()> {
            self.note("resume")
        }
        fn give_away(&self) {}
    }

    #[test]
    fn fault_38_a_newcomer_that_is_late_is_told_that_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let door = Door::make(&folder.path().join("door")).unwrap();
        // It never says that it is ready; or it does, and then not that it accepts.
        for (said, asked) in [(&[][..], &["resume"][..]), (&[Word::Ready], &["pause", "resume"])] {
            let (server, newcomer) = UnixStream::pair().unwrap();
            let (wares, mut newcomer) = (Asked::default(), Talk::new(newcomer).unwrap());
            said.iter().for_each(|word| newcomer.say(*word).unwrap());
            let talk = Talk::within(server, Duration::from_millis(20)).unwrap();
            let lent = Lent::of(door.files(&wares));
            let error = hand_over(talk, &[], &wares, &door.listener, lent).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(*wares.0.lock().unwrap(), asked);
            newcomer.expect_greeting().unwrap();
            let (mut heard, mut last) = (0, Word::End);
            while let Ok((word, _)) = newcomer.take() {
                (heard, last) = (heard + 1, word);
            }
            assert_eq!((heard, last), (3 + said.len(), Word::Withdrawn));
        }
        // The file is the server's again.
        drop(door);
        assert!(!folder.path().join("door").exists());
    }
}
