//! A worker: serving, draining and shutdown.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anello::signal::{INTERRUPT, Signals, TERMINATE};
use anello::{JoinHandle, WorkerContext};
use anello_http::files::Files;
use anello_http::{Request, Server};
use futures_util::future::{Either, select};

use super::service::{Service, open};
use super::start_barrier::BarrierTicket;

use crate::common::listening::{WorkerListeners, finish_accepting, second_signal};

/// Serves until a signal arrives or the sockets have been transferred to another process, then drains the connections.
pub async fn serve(service: Arc<Service>, worker: WorkerContext) -> io::Result<()> {
    // Joined first, so that a failed worker is noticed.
    let listeners = service.listening.join(worker.index);
    let ticket = service.start_barrier.ticket();
    let result = serve_listeners(listeners, &service, &worker, &ticket).await;
    if let Err(error) = &result {
        ticket.fail(error);
        tracing::error!(worker = worker.index, %error, "worker failed");
    }
    result
}

/// Serves once all workers are ready and the sandbox is sealed.
async fn serve_listeners(
    listeners: WorkerListeners,
    service: &Arc<Service>,
    worker: &WorkerContext,
    ticket: &BarrierTicket<'_>,
) -> io::Result<()> {
    let mut signals = Signals::new(&[INTERRUPT, TERMINATE])?;
    let mut files = open(&service.flags.directory, &service.files)?;
    let mut builder = Server::builder().options(service.options.clone());
    if worker.count > 1 {
        builder = builder.shared_connection_count(Arc::clone(&service.connections));
    }
    if let Some(tls) = &service.tls {
        builder = builder.tls(tls.clone());
    }
    if let Some(metrics) = service.metrics.as_ref().and_then(|metrics| metrics.worker(worker.index)) {
        let metrics = Rc::new(metrics);
        builder = builder.metrics(Rc::clone(&metrics));
        files = files.with_metrics(metrics);
    }
    if let Some(log) = &service.log {
        builder = builder.access_log(log.worker(worker.index));
    }
    let (server, files) = (builder.build(), Rc::new(files));
    if let Some(driver) = anello::current_driver() {
        service.sandbox.register_driver(&driver);
        if worker.index == 0 {
            service.driver.get_or_init(|| driver);
        }
    }
    ticket.wait(|| service.sandbox.seal())?;
    let accepting = accept(listeners, &server, &files);
    let signal_received = service.listening.wait_for_shutdown(&mut signals).await?;
    service.health.set_draining();
    service.listening.close();
    if !service.listening.is_transferred() && !service.is_stopping.swap(true, Ordering::Relaxed) {
        service.manager.stopping();
    }
    let aborted = drain_or_abort(&server, accepting, second_signal(&mut signals, signal_received)).await;
    if aborted > 0 {
        tracing::warn!(connections = aborted, "drain ended early, closed the remaining connections");
    }
    Ok(())
}

/// Starts serving on the TCP and Unix sockets.
fn accept(listeners: WorkerListeners, server: &Server, files: &Rc<Files>) -> Vec<JoinHandle<()>> {
    let new_handler = |files: &Rc<Files>| {
        let files = Rc::clone(files);
        async move |request: Request| files.handle(&request).await
    };
    let internet = listeners.internet.map(|member| server.serve(member, new_handler(files)));
    let unix = listeners.unix.map(|member| server.serve(member, new_handler(files)));
    internet.into_iter().chain(unix).collect()
}

/// Accepts the queued connections and drains the server. Returns the number of connections aborted at the drain timeout
/// or because `abort_requested` completed first.
async fn drain_or_abort(
    server: &Server,
    mut accepting: Vec<JoinHandle<()>>,
    abort_requested: impl Future<Output = ()>,
) -> usize {
    let drain = async {
        finish_accepting(&mut accepting).await;
        server.drain().await
    };
    if let Either::Left((aborted, _)) = select(pin!(drain), pin!(abort_requested)).await {
        return aborted;
    }
    accepting.iter().for_each(JoinHandle::abort);
    server.abort_and_wait().await
}
