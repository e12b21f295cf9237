//! Connections that move from a busy worker to another one.

use std::io::{self, Read, Write};
use std::net::TcpStream as StdStream;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anello::net::{ByteStream, TcpListener};
use anello::server::{
    AttachedStream, DetachedStream, ListenerGroup, PendingConnections, Rebalancer, RebalancerMember,
};
use anello::{Workers, spawn};

use crate::common::{assert_same_bytes, group_setups, hang_timeout, on_each, pattern};

type Member = Rc<RebalancerMember<DetachedStream>>;

/// Number of connections that each worker serves.
type Served = Arc<[AtomicUsize]>;

/// Echoes until EOF, or until the connection moves to another worker.
async fn serve(mut stream: impl ByteStream, member: Member, worker: usize, served: Served) -> io::Result<()> {
    served[worker].fetch_add(1, Ordering::Relaxed);
    let connection = ptr::from_ref(&stream).addr();
    let selected = loop {
        let (mut reader, mut writer) = stream.split();
        let Some(chunk) = reader.recv().await? else { break false };
        writer.send(chunk).await?;
        if member.record(connection, 1) {
            break true;
        }
    };
    served[worker].fetch_sub(1, Ordering::Relaxed);
    if selected {
        let detached = DetachedStream::detach(stream).await.map_err(io::Error::from)?;
        if let Err(refused) = member.move_connection(connection, detached) {
            attach(refused, member, worker, served);
        }
    }
    Ok(())
}

fn attach(detached: DetachedStream, member: Member, worker: usize, served: Served) {
    match detached.attach().expect("the stream is attached") {
        AttachedStream::Tcp(stream) => spawn(serve(stream, member, worker, served)).detach(),
        AttachedStream::Unix(_) => unreachable!("all clients use TCP"),
    }
}

/// Starts a worker for each element of `served`. Only the first accepts connections.
fn start(
    group: &ListenerGroup<TcpListener>,
    builder: anello::RuntimeBuilder,
    served: &Served,
) -> io::Result<Workers<()>> {
    let (group, served, rebalancer) = (group.clone(), Arc::clone(served), Rebalancer::new(served.len()));
    Workers::builder().unpinned_workers(served.len()).runtime(builder).start(move |worker| {
        let (group, served, rebalancer) = (group.clone(), Arc::clone(&served), rebalancer.clone());
        async move {
            let member = Rc::new(rebalancer.join(worker.index));
            let (moved, counted) = (Rc::clone(&member), Arc::clone(&served));
            let receiving = spawn(async move {
                while let Some(detached) = moved.recv().await {
                    attach(detached, Rc::clone(&moved), worker.index, Arc::clone(&counted));
                }
            });
            if worker.index == 0 {
                let accepting = group.join(0);
                while let Some(stream) = accepting.accept().await.expect("accept succeeds") {
                    let serving = serve(stream, Rc::clone(&member), 0, Arc::clone(&served));
                    spawn(async { serving.await.expect("no connection fails") }).detach();
                }
            } else {
                group.closed().await;
            }
            member.close();
            receiving.await.expect("no panic");
        }
    })
}

/// Eight clients exchange messages until the workers serve these numbers of connections.
fn move_until(workers: usize, is_reached: impl Fn(&[usize]) -> bool + Send + Sync + 'static) {
    on_each(group_setups(), move |setup| {
        let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1).expect("a group");
        let address = group.sockets().expect("sockets")[0].local_addr().expect("an address");
        let served: Served = (0..workers).map(|_| AtomicUsize::new(0)).collect();
        let counts = || Vec::from_iter(served.iter().map(|count| count.load(Ordering::Relaxed)));
        let workers = start(&group, setup.builder(), &served).expect("workers");
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..8).map(|seed| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut client = StdStream::connect(address).expect("a connection");
                client.set_read_timeout(Some(hang_timeout())).expect("a timeout");
                let sent = pattern(seed, 700);
                let mut received = vec![0; sent.len()];
                while !stop.load(Ordering::Relaxed) {
                    client.write_all(&sent).expect("send succeeds");
                    client.read_exact(&mut received).expect("an echo");
                    assert_same_bytes(&received, &sent);
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        // Clients that fail also end the wait.
        while !is_reached(&counts()) && !clients.iter().any(thread::JoinHandle::is_finished) {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("no client fails"));
        while counts().iter().any(|count| *count > 0) {
            thread::yield_now();
        }
        group.close(PendingConnections::Serve);
        workers.join().expect("the workers exit");
    });
}

#[test]
fn busy_connections_move_to_idle_worker_without_losing_bytes() {
    move_until(2, |served| (3..=5).contains(&served[1]));
}

#[test]
fn busy_connections_move_to_each_idle_worker() {
    move_until(4, |served| served.iter().all(|count| *count > 0));
}
