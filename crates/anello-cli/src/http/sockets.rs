//! Where the sockets of a server come from: it makes them, is passed them by a service manager, or takes them over from the
//! server that runs; and how it begins, and goes.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anello::net::{ListenerGroup, PendingConnections, TcpListener};

use super::handover::{Door, Newcomer, StartLock, Wares, ask};
use crate::activation::Passed;
use crate::address::Address;
use crate::listening::{Listening, ListeningSocket, SocketFile, passed_and};

/// Where a server listens that is not told where.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";

/// How long the workers may take to be ready, and then to accept.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Where it is to listen.
pub struct Wanted<'a> {
    pub address: Option<&'a Address>,
    pub metrics: Option<SocketAddr>,
    /// Where servers ask, and are asked, to hand over.
    pub handover: Option<&'a Path>,
    pub workers: usize,
}

/// The sockets, and what is to be done with them when the workers are there.
pub struct Sockets {
    pub listening: Arc<Listening>,
    /// Where metrics and health are to be told.
    pub metrics: Option<StdTcpListener>,
    pub beginning: Beginning,
}

/// What is to be done when the workers are there.
pub struct Beginning {
    door: Option<Door>,
    newcomer: Option<Newcomer>,
    /// Of the door, to be removed at the end.
    door_file: Option<Arc<SocketFile>>,
}

impl Sockets {
    /// Finds them.
    pub fn find(wanted: &Wanted<'_>, passed: Passed) -> io::Result<Self> {
        if !passed.sockets.is_empty() {
            return Self::passed(wanted, passed);
        }
        let address = match wanted.address {
            Some(address) => address.clone(),
            None => DEFAULT_ADDRESS.parse().map_err(io::Error::other)?,
        };
        let Some(path) = wanted.handover else { return Self::made(wanted, &address, None) };
        // Until this one can be asked, or has asked.
        let _lock = StartLock::take(path)?;
        match ask(path)? {
            Some(newcomer) => Self::taken_over(wanted, &address, path, newcomer),
            None => Self::made(wanted, &address, Some(path)),
        }
    }

    fn made(wanted: &Wanted<'_>, address: &Address, door: Option<&Path>) -> io::Result<Self> {
        let listening = Listening::prepare(address, wanted.workers)?;
        let metrics = wanted.metrics.map(listen_for_metrics).transpose()?;
        let door = door.map(Door::make).transpose()?;
        Ok(Self::new(listening, metrics, door, None))
    }

    fn passed(wanted: &Wanted<'_>, passed: Passed) -> io::Result<Self> {
        if wanted.handover.is_some() {
            return Err(passed_and("--handover"));
        }
        let metrics = match (passed.metrics, wanted.metrics) {
            (Some(_), Some(_)) => return Err(passed_and("--metrics-addr")),
            (Some(listener), None) => Some(listener),
            (None, address) => address.map(listen_for_metrics).transpose()?,
        };
        if wanted.address.is_some() {
            return Err(passed_and("--addr"));
        }
        let listening = Listening::passed(passed.sockets, wanted.workers)?;
        Ok(Self::new(listening, metrics, None, None))
    }

    fn taken_over(
        wanted: &Wanted<'_>,
        address: &Address,
        path: &Path,
        mut newcomer: Newcomer,
    ) -> io::Result<Self> {
        for socket in &newcomer.sockets {
            let found = socket.address()?;
            if !is_meant(address, &found) {
                let message = format!(
                    "--handover {}: the running server listens on {found}, and not on {address}: give that as --addr, or \
                     stop that server first",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        let file = match &newcomer.sockets[..] {
            [ListeningSocket::Unix(listener), ..] => {
                listener.local_addr()?.as_pathname().map(file_of_another).transpose()?
            }
            _ => None,
        };
        let sockets = std::mem::take(&mut newcomer.sockets);
        let listening = Listening::new(sockets, wanted.workers, PendingConnections::Serve, file)?;
        let metrics = match (newcomer.metrics.take(), wanted.metrics) {
            (_, None) => None,
            (Some(listener), Some(address)) if is_at(address, listener.local_addr()?) => Some(listener),
            (_, Some(address)) => Some(listen_for_metrics(address)?),
        };
        let door = Door::taken_over(newcomer.door.try_clone()?, path)?;
        Ok(Self::new(listening, metrics, Some(door), Some(newcomer)))
    }

    fn new(
        listening: Listening,
        metrics: Option<StdTcpListener>,
        door: Option<Door>,
        newcomer: Option<Newcomer>,
    ) -> Self {
        let door_file = door.as_ref().map(Door::file);
        let beginning = Beginning { door, newcomer, door_file };
        Self { listening: Arc::new(listening), metrics, beginning }
    }
}

/// The file of a socket that another process has made, which it may have named by a path that counts from where it is.
fn file_of_another(path: &Path) -> io::Result<SocketFile> {
    SocketFile::of_another(path).map_err(|error| {
        let remedy = match path.is_relative() {
            true => "start in the folder in which the running server was started",
            false => "it was removed: stop the running server, which nobody can reach by it",
        };
        io::Error::new(error.kind(), format!("--addr unix:{}: {error}: {remedy}", path.display()))
    })
}

/// Whether a socket at the second address is one that was asked for by the first.
fn is_meant(asked: &Address, found: &Address) -> bool {
    match (asked, found) {
        (Address::Internet(asked), Address::Internet(found)) => is_at(*asked, *found),
        (asked, found) => asked.to_string() == found.to_string(),
    }
}

/// The same, where port 0 is any.
fn is_at(asked: SocketAddr, found: SocketAddr) -> bool {
    asked == found || (asked.port() == 0 && asked.ip() == found.ip())
}

fn listen_for_metrics(address: SocketAddr) -> io::Result<StdTcpListener> {
    StdTcpListener::bind(address)
        .map_err(|error| io::Error::new(error.kind(), format!("--metrics-addr {address}: {error}")))
}

/// What a door hands over.
struct Shop {
    listening: Arc<Listening>,
    metrics: Option<ListenerGroup<TcpListener>>,
}

impl Beginning {
    /// Has so many workers accept, when all are there and whoever accepted before has stopped. Whether they do, and the
    /// server has not been told to end meanwhile. What is returned is to be held until the process ends.
    pub fn begin(
        self,
        listening: &Arc<Listening>,
        metrics: Option<ListenerGroup<TcpListener>>,
        workers: usize,
    ) -> io::Result<(bool, Held)> {
        let Self { door, mut newcomer, door_file } = self;
        let held = Held { took_over: newcomer.is_some(), door_file };
        let shop = Shop { listening: Arc::clone(listening), metrics };
        let are_there = |count: usize| match count {
            count if count == workers => Ok(()),
            count => Err(io::Error::other(format!("only {count} of {workers} workers have started"))),
        };
        let settled = shop.settle(STARTS_WITHIN)?;
        if listening.is_closed() {
            return Ok((false, held));
        }
        are_there(settled)?;
        if let Some(newcomer) = &mut newcomer {
            newcomer.ready()?;
        }
        shop.resume(STARTS_WITHIN)?;
        if listening.is_closed() {
            return Ok((false, held));
        }
        if let Some(newcomer) = &mut newcomer {
            newcomer.accepting()?;
            listening.file().into_iter().chain(held.door_file.as_deref()).for_each(SocketFile::claim);
        }
        if let Some(door) = door {
            door.open(shop)?;
        }
        Ok((true, held))
    }
}

/// What ends with the process.
pub struct Held {
    pub took_over: bool,
    door_file: Option<Arc<SocketFile>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The thread at the door has it, too, and does not end.
        self.door_file.iter().for_each(|file| file.remove());
    }
}

impl Shop {
    fn settle(&self, within: Duration) -> io::Result<usize> {
        self.metrics.as_ref().map(|group| group.wait_applied(within)).transpose()?;
        self.listening.settle(within)
    }
}

impl Wares for Shop {
    fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        self.listening.sockets()
    }

    fn file(&self) -> Option<&SocketFile> {
        self.listening.file()
    }

    fn metrics(&self) -> io::Result<Option<StdTcpListener>> {
        let sockets = self.metrics.as_ref().map(ListenerGroup::sockets).transpose()?;
        Ok(sockets.and_then(|mut sockets| sockets.pop()))
    }

    fn pause(&self, within: Duration) -> io::Result<()> {
        self.listening.pause();
        self.metrics.iter().for_each(ListenerGroup::pause);
        self.settle(within).map(drop)
    }

    fn resume(&self, within: Duration) -> io::Result<()> {
        self.listening.resume();
        self.metrics.iter().for_each(ListenerGroup::resume);
        self.settle(within).map(drop)
    }

    fn give_away(&self) {
        self.metrics.iter().for_each(|group| group.close(PendingConnections::Leave));
        self.listening.give_away();
    }
}
