//! compio on io_uring: files and datagrams.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use anello_bench_api::{ALIGNMENT, Arguments, MAX_DATAGRAM_BYTES, announce, serve, share, unsupported};
use compio::buf::{IntoInner, IoBuf};
use compio::fs::OpenOptions;
use compio::io::{AsyncReadAtExt, AsyncWriteAtExt};
use compio::net::UdpSocket;

fn main() {
    let arguments = Arguments::parse();
    let runtime = compio::runtime::Runtime::new().expect("runtime starts");
    match &*arguments.workload {
        "read-cached" | "read-direct" | "write-cached" | "write-direct" => {
            let mut buffers = Vec::new();
            serve(|count| runtime.block_on(file(count, &arguments, &mut buffers)));
        }
        "udp-echo" => runtime.block_on(udp_echo(arguments.listen_address())).unwrap(),
        _ => unsupported(),
    }
}

async fn udp_echo(address: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(address).await?;
    announce(socket.local_addr()?);
    let mut buffer = Vec::with_capacity(MAX_DATAGRAM_BYTES);
    loop {
        let (received, filled) = socket.recv_from(buffer).await.into();
        let (_, peer) = received?;
        let (sent, returned) = socket.send_to(filled, peer).await.into();
        sent?;
        buffer = returned;
        buffer.clear();
    }
}

/// Random reads or writes of blocks by `depth` tasks. The buffers are kept for the next slice.
async fn file(count: u64, arguments: &Arguments, buffers: &mut Vec<Vec<u8>>) {
    let writes = arguments.workload.starts_with("write");
    let mut options = OpenOptions::new();
    let options = options.read(true).write(writes).custom_flags(arguments.open_flags());
    let file = Rc::new(options.open(&arguments.file).await.unwrap());
    let (bytes, blocks, share) = (arguments.bytes, arguments.blocks(), share(count, arguments.depth));
    let tasks = (0..arguments.depth).map(|task| {
        let file = Rc::clone(&file);
        // A slice of a larger vector: aligned, as direct I/O requires.
        let memory = buffers.pop().unwrap_or_else(|| vec![7; bytes + ALIGNMENT]);
        compio::runtime::spawn(async move {
            let mut random = fastrand::Rng::with_seed(task as u64);
            let start = memory.as_ptr().align_offset(ALIGNMENT);
            let mut block = memory.slice(start..start + bytes);
            for _ in 0..share {
                let offset = random.u64(..blocks) * bytes as u64;
                block = if writes {
                    let mut target = &*file;
                    let (result, block) = target.write_all_at(block, offset).await.into();
                    result.unwrap();
                    block
                } else {
                    let (result, block) = file.read_exact_at(block, offset).await.into();
                    result.unwrap();
                    block
                };
            }
            block.into_inner()
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        buffers.push(task.await.unwrap());
    }
}
