//! Simulated descriptors, in a driver or in a listener group.
//!
//! A simulated socket cannot leave its thread, but a listener group can. The handle of a detached socket is therefore
//! only a number, and the sockets are in a table of the thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::network::{Id, Network};
use crate::driver::sockets::detached::{Detached, DetachedSocket};

/// An open socket. Operations in flight hold clones of it. It is closed when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct SimSocket {
    descriptor: Rc<Descriptor>,
}

#[derive(Debug)]
struct Descriptor {
    id: Id,
    network: Rc<RefCell<Network>>,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // The network is still borrowed only if a test has panicked during a call. In that case, it is no longer used.
        if let Ok(mut network) = self.network.try_borrow_mut() {
            network.close(self.id);
        }
    }
}

impl SimSocket {
    /// Creates the descriptor of an endpoint that has none yet.
    pub(super) fn new(id: Id, network: Rc<RefCell<Network>>) -> Self {
        Self { descriptor: Rc::new(Descriptor { id, network }) }
    }

    pub(super) fn id(&self) -> Id {
        self.descriptor.id
    }

    pub(super) fn network(&self) -> &Rc<RefCell<Network>> {
        &self.descriptor.network
    }
}

thread_local! {
    static DETACHED: RefCell<BTreeMap<u64, SimSocket>> = const { RefCell::new(BTreeMap::new()) };
}

/// Number of the next handle, unique in the process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A handle to a socket that belongs to no driver. On other threads than that of the simulation, it refers to no socket.
#[derive(Debug)]
pub(super) struct SimDetached {
    number: u64,
}

impl SimDetached {
    pub fn new(socket: SimSocket) -> Self {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        // In a destructor at the end of the thread, the table may not exist any more. The socket is then closed.
        DETACHED.try_with(|sockets| sockets.borrow_mut().insert(number, socket)).ok();
        Self { number }
    }

    pub fn socket(&self) -> io::Result<SimSocket> {
        let socket = DETACHED.try_with(|sockets| sockets.borrow().get(&self.number).cloned());
        socket.ok().flatten().ok_or_else(|| {
            let text =
                "cannot use a simulated socket on another thread (use it on the thread of the simulation)";
            io::Error::new(io::ErrorKind::Unsupported, text)
        })
    }
}

impl From<SimDetached> for DetachedSocket {
    fn from(socket: SimDetached) -> Self {
        Self::Simulated(Box::new(socket))
    }
}

impl Detached for SimDetached {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        let socket = self.socket()?;
        let network = socket.network().borrow();
        Ok(network.endpoint(socket.id()).local)
    }

    fn try_clone(&self) -> io::Result<DetachedSocket> {
        self.socket().map(|socket| Self::new(socket).into())
    }

    fn try_accept(&self) -> io::Result<DetachedSocket> {
        let socket = self.socket()?;
        let accepted = socket.network().borrow_mut().accept(socket.id());
        let id = accepted.map_err(io::Error::from_raw_os_error)?;
        Ok(Self::new(SimSocket::new(id, Rc::clone(socket.network()))).into())
    }
}

impl Drop for SimDetached {
    fn drop(&mut self) {
        // The socket is dropped after the borrow has ended. If the thread is exiting, the table may not exist any more.
        let socket = DETACHED.try_with(|sockets| sockets.borrow_mut().remove(&self.number));
        drop(socket);
    }
}
