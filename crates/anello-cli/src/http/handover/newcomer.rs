//! The one that takes over.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::retry_on_intr;

use super::wire::{Talk, Word, is_gone, is_silent};
use crate::listening::ListeningSocket;

/// How often a server that goes while it is asked is asked again: another may have taken its place.
const TRIES: usize = 5;

/// What a newcomer was given, and its word with the server that gave it.
#[derive(Debug)]
pub struct Newcomer {
    talk: Talk,
    pub sockets: Vec<ListeningSocket>,
    pub metrics: Option<TcpListener>,
    pub door: UnixListener,
    /// The server has died: there is nobody to talk to.
    is_alone: bool,
}

/// Keeps others from starting at the same path until this one has a door of its own, or has asked whoever has one.
#[derive(Debug)]
pub struct StartLock(#[expect(dead_code, reason = "held")] File);

impl StartLock {
    pub fn take(path: &Path) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let name = PathBuf::from(name);
        // The folder may belong to an unprivileged user: what root opens there may be anything.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let opened = File::options().create(true).append(true).mode(0o600).custom_flags(flags).open(&name);
        let locked = opened.and_then(|file| {
            if !file.metadata()?.is_file() {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is no regular file: remove it"));
            }
            retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            Ok(Self(file))
        });
        locked.map_err(|error| {
            let remedy = "name a path in a folder that this user may write to";
            io::Error::new(error.kind(), format!("--handover: {}: {error}: {remedy}", name.display()))
        })
    }
}

/// Asks whoever serves at this path for the sockets. `None` when nobody does; what a server that has died left there is
/// removed then.
pub fn ask(path: &Path) -> io::Result<Option<Newcomer>> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("--handover {}: {error}", path.display()));
    for _ in 0..TRIES {
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                remove_stale(path).map_err(named)?;
                return Ok(None);
            }
            Err(error) => return Err(named(error)),
        };
        match Talk::new(stream).and_then(Newcomer::given) {
            Ok(newcomer) => return Ok(Some(newcomer)),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(named(error)),
        }
    }
    let message = "somebody listens there, and hands nothing over: stop that, or name another path";
    Err(named(io::Error::new(io::ErrorKind::AddrInUse, message)))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let message = "it exists, and is no socket: name another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    fs::remove_file(path)
}

impl Newcomer {
    fn given(mut talk: Talk) -> io::Result<Self> {
        talk.expect_greeting()?;
        let (mut sockets, mut metrics, mut door) = (Vec::new(), None, None);
        loop {
            match talk.take()? {
                (Word::Socket, Some(descriptor)) => {
                    sockets.push(ListeningSocket::from_descriptor(descriptor)?);
                }
                (Word::Metrics, Some(descriptor)) => metrics = Some(TcpListener::from(descriptor)),
                (Word::Door, Some(descriptor)) => door = Some(UnixListener::from(descriptor)),
                (Word::End, None) => break,
                (Word::Withdrawn, _) => return Err(withdrawn()),
                (word, _) => return Err(unexpected(word)),
            }
        }
        match door {
            Some(door) if !sockets.is_empty() => Ok(Self { talk, sockets, metrics, door, is_alone: false }),
            _ => Err(unexpected(Word::End)),
        }
    }

    /// Says that everything is prepared, and waits until the server has stopped accepting.
    pub fn ready(&mut self) -> io::Result<()> {
        self.tell(Word::Ready, Word::Stopped)
    }

    /// Says that this process accepts, and waits until the server knows.
    pub fn accepting(&mut self) -> io::Result<()> {
        if self.is_alone {
            return Ok(());
        }
        match self.tell(Word::Accepting, Word::Done) {
            // It has stopped accepting, and hears this first when it goes on: there is to be one that serves.
            Err(error) if is_silent(&error) => {
                tracing::warn!("the server that has stopped accepting says nothing more: this one goes on");
                Ok(())
            }
            told => told,
        }
    }

    /// Says a word, and waits for the answer to it. Without one from a server that has gone, this process is alone.
    fn tell(&mut self, word: Word, expected: Word) -> io::Result<()> {
        // What it has said before it went is heard, whether or not this is.
        let said = self.talk.say(word);
        match self.talk.hear() {
            Ok(word) if word == expected => Ok(()),
            Ok(Word::Withdrawn) => Err(withdrawn()),
            Ok(word) => Err(unexpected(word)),
            Err(error) if is_gone(&error) => {
                tracing::warn!("the server that handed its sockets over has died: this one goes on alone");
                self.is_alone = true;
                Ok(())
            }
            Err(error) => Err(said.err().unwrap_or(error)),
        }
    }
}

fn withdrawn() -> io::Error {
    let message = "the running server has not waited for this one, and goes on: see its log";
    io::Error::new(io::ErrorKind::ConnectionAborted, message)
}

fn unexpected(word: Word) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{word:?} was not to be said by the server now"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A newcomer that waits for so long, and the server that has given it what it has.
    fn pair(patience: Duration) -> (Newcomer, Talk) {
        let (one, other) = UnixStream::pair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let newcomer = Newcomer {
            talk: Talk::within(one, patience).unwrap(),
            sockets: Vec::new(),
            metrics: None,
            door: UnixListener::bind(folder.path().join("door")).unwrap(),
            is_alone: false,
        };
        (newcomer, Talk::new(other).unwrap())
    }

    const FOR_EVER: Duration = Duration::from_secs(3600);

    #[test]
    fn fault_38_who_is_told_to_be_late_does_not_take_the_server_for_dead() {
        for tell in [Newcomer::ready, Newcomer::accepting] {
            let (mut newcomer, mut server) = pair(FOR_EVER);
            server.say(Word::Withdrawn).unwrap();
            drop(server);
            let error = tell(&mut newcomer).unwrap_err();
            assert!(error.to_string().contains("goes on"), "{error}");
            assert!(!newcomer.is_alone);
        }
    }

    #[test]
    fn fault_38_a_server_that_has_died_leaves_the_newcomer_alone() {
        let (mut newcomer, server) = pair(FOR_EVER);
        drop(server);
        newcomer.ready().unwrap();
        assert!(newcomer.is_alone);
        newcomer.accepting().unwrap();
    }

    #[test]
    fn fault_38_a_server_that_has_stopped_and_says_nothing_consents() {
        let (mut newcomer, mut server) = pair(Duration::from_millis(20));
        // Before it has stopped, it does not.
        assert!(is_silent(&newcomer.ready().unwrap_err()));
        newcomer.accepting().unwrap();
        // It hears what was said when it goes on.
        assert_eq!((server.hear().unwrap(), server.hear().unwrap()), (Word::Ready, Word::Accepting));
    }
}
