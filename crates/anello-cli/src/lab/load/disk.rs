//! Control connections to disk workers.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anello_lab::load::latency_histogram;
use anello_lab::{DiskOperation, LoadError, LoadSession, SliceLoad, latency};
use serde::{Deserialize, Serialize};

/// Timeout for connecting and for writing a command.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Command that is sent to a disk worker as a line of JSON.
#[derive(Clone, Copy, Serialize)]
pub struct DiskCommand {
    pub operation: DiskOperation,
    pub direct: bool,
    pub block_bytes: usize,
    pub depth: usize,
    pub duration_ns: u64,
    pub seed: u64,
}

/// Reply from a disk worker, sent as a line of JSON: the result of a command, or an error.
#[derive(Default, Deserialize)]
#[serde(default)]
struct DiskReply {
    error: Option<String>,
    operations: u64,
    elapsed_ns: u64,
    latency: String,
    errors: Vec<(String, u64)>,
    wrong_blocks: u64,
}

pub struct DiskSession {
    stream: BufReader<TcpStream>,
    command: DiskCommand,
    file: PathBuf,
}

impl DiskSession {
    pub fn connect(target: SocketAddr, command: DiskCommand, file: &Path) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream), command, file: file.to_owned() })
    }

    fn request(&mut self, duration: Duration) -> io::Result<DiskReply> {
        // At the end of a slice, the worker waits for all operations in flight, which a disk can delay for a long time.
        self.stream.get_ref().set_read_timeout(Some(duration + 6 * TIMEOUT))?;
        self.command.duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.command.seed += 1;
        let mut line = serde_json::to_string(&self.command)?;
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes())?;
        line.clear();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the disk worker closed the connection"));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl LoadSession for DiskSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, LoadError> {
        let reply = self.request(duration)?;
        if let Some(error) = reply.error {
            return Err(LoadError::Failed(error));
        }
        let mut sum = latency_histogram();
        if !reply.latency.is_empty() {
            latency::add(&mut sum, &latency::decode(&reply.latency)?);
        }
        Ok(SliceLoad {
            requests: reply.operations,
            elapsed_ns: reply.elapsed_ns,
            latency: sum,
            errors: reply.errors,
            wrong_replies: reply.wrong_blocks,
            ..SliceLoad::empty()
        })
    }

    /// Flushes buffered writes from the page cache to the disk (`fsync(2)`).
    fn settle(&mut self) -> Result<(), LoadError> {
        let writes =
            matches!(self.command.operation, DiskOperation::RandomWrite | DiskOperation::SequentialWrite);
        if !writes || self.command.direct {
            return Ok(());
        }
        File::open(&self.file)
            .and_then(|file| file.sync_all())
            .map_err(|error| LoadError::Failed(format!("cannot sync {}: {error}", self.file.display())))
    }
}
