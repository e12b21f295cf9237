//! One worker: its files, its server, and its end.

use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use anello::signal::{INTERRUPT, Signals, TERMINATE};
use anello::{JoinHandle, WorkerContext};
use anello_http::files::Files;
use anello_http::{Request, Server};

use super::start_barrier::BarrierTicket;
use super::{Service, open};
use crate::listening::{WorkerListeners, finish_accepting};

/// Serves until a signal, or until the sockets are another's, then drains.
pub async fn serve(service: Arc<Service>, worker: WorkerContext) -> io::Result<()> {
    // First of all, so that a worker that fails is missed.
    let listeners = service.listening.join(worker.index);
    let ticket = service.start_barrier.ticket();
    let served = serve_listeners(listeners, &service, &worker, &ticket).await;
    if let Err(error) = &served {
        ticket.fail(error);
        tracing::error!(worker = worker.index, %error, "a worker has failed");
    }
    served
}

/// Serves, when all other workers are ready to, and the sandbox stands.
async fn serve_listeners(
    listeners: WorkerListeners,
    service: &Arc<Service>,
    worker: &WorkerContext,
    ticket: &BarrierTicket<'_>,
) -> io::Result<()> {
    let mut signals = Signals::new(&[INTERRUPT, TERMINATE])?;
    let mut files = open(&service.folder, &service.files)?;
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
        tracing::warn!(connections = aborted, "connections were closed before they were done");
    }
    Ok(())
}

/// Serves what comes to either kind of socket.
fn accept(listeners: WorkerListeners, server: &Server, files: &Rc<Files>) -> Vec<JoinHandle<()>> {
    let answering = |files: &Rc<Files>| {
        let files = Rc::clone(files);
        async move |request: Request| files.handle(&request).await
    };
    let internet = listeners.internet.map(|member| server.serve(member, answering(files)));
    let unix = listeners.unix.map(|member| server.serve(member, answering(files)));
    internet.into_iter().chain(unix).collect()
}

/// Serves who waits and what has begun, unless there is no time for it; how many connections were broken.
async fn drain_or_abort(
    server: &Server,
    mut accepting: Vec<JoinHandle<()>>,
    is_urgent: impl Future<Output = ()>,
) -> usize {
    let draining = async {
        finish_accepting(&mut accepting).await;
        server.drain().await
    };
    if let Some(aborted) = run_until(draining, is_urgent).await {
        return aborted;
    }
    accepting.iter().for_each(JoinHandle::abort);
    server.abort_and_wait().await
}

/// Waits for the signal that ends it at once.
async fn second_signal(signals: &mut Signals, signal_received: bool) {
    // The first one asks for what is being done already; another worker may have heard it before.
    let signals_left = if signal_received { 1 } else { 2 };
    for _ in 0..signals_left {
        if let Err(error) = signals.recv().await {
            tracing::error!(%error, "signals cannot be waited for");
            return pending().await;
        }
    }
}

/// The first one's result, unless the other one is done before.
async fn run_until<T>(first: impl Future<Output = T>, other: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut other) = (pin!(first), pin!(other));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => other.as_mut().poll(context).map(|()| None),
    })
    .await
}
