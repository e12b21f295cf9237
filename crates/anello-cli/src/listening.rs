//! Where the workers listen, and what has to be held until they have ended.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::{Path, PathBuf};

use socket2::Socket;

use crate::address::Address;
use crate::limits;

pub enum Listening {
    /// Each worker listens for itself.
    Internet {
        address: SocketAddr,
        /// Whether several listen at the address.
        shared: bool,
        /// Holds the port, on which several listeners must agree before they share it, until they do.
        _port: Option<Socket>,
    },
    /// All workers accept from one socket: the kernel has no `SO_REUSEPORT` for these.
    Unix { address: UnixAddress, listener: UnixListener, _file: Option<SocketFile> },
}

impl Listening {
    /// The TCP port that workers still have to bind; 0 is one that the kernel chooses.
    pub fn port_to_bind(&self) -> Option<u16> {
        match self {
            Self::Internet { address, .. } => Some(address.port()),
            Self::Unix { .. } => None,
        }
    }

    /// The socket file that is removed at the end.
    pub fn socket_file(&self) -> Option<&Path> {
        match self {
            Self::Unix { _file: Some(file), .. } => Some(&file.path),
            _ => None,
        }
    }

    /// Makes ready what so many workers need to listen at the address.
    pub fn prepare(address: &Address, workers: usize) -> io::Result<Self> {
        match address {
            Address::Internet(address) if workers > 1 => {
                let (port, address) = limits::hold_port(*address)?;
                Ok(Self::Internet { address, shared: true, _port: Some(port) })
            }
            Address::Internet(address) => {
                Ok(Self::Internet { address: *address, shared: false, _port: None })
            }
            Address::Unix(name) => {
                let listener = UnixListener::bind_addr(name).map_err(|error| {
                    let remedy = match error.kind() {
                        io::ErrorKind::AddrInUse => {
                            "; if no server listens there (ss -xl tells), remove the file"
                        }
                        _ => "",
                    };
                    io::Error::new(error.kind(), format!("{address}: {error}{remedy}"))
                })?;
                let file = name.as_pathname().map(SocketFile::made).transpose()?;
                Ok(Self::Unix { address: name.clone(), listener, _file: file })
            }
        }
    }
}

/// A socket file that this process has made; removed when dropped, unless another has taken its place.
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn made(path: &Path) -> io::Result<Self> {
        // Workers may end elsewhere than they began.
        let path = std::path::absolute(path)?;
        Ok(Self { identity: identity(&path)?, path })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let removed = identity(&self.path).and_then(|found| match found == self.identity {
            true => fs::remove_file(&self.path),
            false => Ok(()),
        });
        if let Err(error) = removed {
            tracing::warn!(%error, path = %self.path.display(), "the socket file could not be removed");
        }
    }
}

/// Device and number of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}
