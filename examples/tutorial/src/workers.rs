//! Servers on all cores, until a signal.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use anello::net::TcpListener;
use anello::server::{GroupMember, ListenerGroup, PendingConnections};
use anello::signal::{SignalKind, Signals};
use anello::{Runtime, WorkerContext, Workers};
use futures_util::future::select;

/// Calls `serve` on each core, until SIGTERM, SIGINT or the failure of a worker. It then closes the listeners, and waits for all workers.
///
/// `serve` accepts connections from a member of a listener group, until the member returns `None`. It returns the
/// number of connections that it had to close.
pub fn run<F>(
    address: SocketAddr,
    serve: impl Fn(WorkerContext, GroupMember<TcpListener>) -> F + Send + Sync + 'static,
) -> io::Result<()>
where
    F: Future<Output = io::Result<usize>>,
{
    Runtime::new()?.block_on(async {
        let mut signals = Signals::new([SignalKind::terminate(), SignalKind::interrupt()])?;
        let group = ListenerGroup::<TcpListener>::bind(address, Workers::builder().worker_count()?)?;
        let (members, serve) = (group.clone(), Arc::new(serve));
        let workers = Workers::builder().start(move |worker| {
            let (members, serve) = (members.clone(), Arc::clone(&serve));
            async move {
                let member = members.join(worker.index);
                let result = serve(worker, member).await;
                // If this worker has failed, the others end as well.
                members.close(PendingConnections::Serve);
                result
            }
        })?;
        println!("listening on {}", group.sockets()?[0].local_addr()?);

        select(pin!(signals.recv()), pin!(group.closed())).await;
        group.close(PendingConnections::Serve);
        let mut aborted = 0;
        for result in workers.join()? {
            aborted += result?;
        }
        println!("stopped, {aborted} connections aborted");
        Ok(())
    })
}
