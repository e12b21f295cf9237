//! One worker: its files, its server, and its end.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anello::signal::{HANG_UP, INTERRUPT, Signals, TERMINATE};
use anello::time::timeout;
use anello::{JoinHandle, Worker};
use anello_http::files::Files;
use anello_http::{Request, Server};

use super::gate::Place;
use super::{Service, open};
use crate::listening::{Listening, Share};
use crate::notify;

/// How long clients that wait at the end may take to be accepted; more than there is room for are refused one by one.
const LAST_ACCEPTS_WITHIN: Duration = Duration::from_secs(2);

/// Serves until a signal, or until the sockets are another's, then drains.
pub async fn serve(service: Arc<Service>, worker: Worker) -> io::Result<()> {
    // First of all, so that a worker that fails is missed.
    let share = service.listening.join(worker.index);
    let place = service.gate.place();
    let served = serve_share(share, &service, &worker, &place).await;
    if let Err(error) = &served {
        place.fail(error);
        tracing::error!(worker = worker.index, %error, "a worker has failed");
    }
    served
}

/// Serves, when all other workers are ready to, and the sandbox stands.
async fn serve_share(
    share: Share,
    service: &Arc<Service>,
    worker: &Worker,
    place: &Place<'_>,
) -> io::Result<()> {
    let mut signals = Signals::new(&[INTERRUPT, TERMINATE])?;
    let hangups = Signals::new(&[HANG_UP]);
    let mut files = open(&service.folder, &service.files)?;
    let mut builder = Server::builder().options(service.options.clone());
    if let Some(tls) = service.tls.read()? {
        builder = builder.tls(tls);
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
        service.sandbox.uses(&driver);
        if worker.index == 0 {
            service.driver.get_or_init(|| driver);
        }
    }
    place.pass(|| service.sandbox.seal())?;
    let reloading =
        anello::spawn(reload_on_hangup(Arc::clone(service), server.clone(), worker.index, hangups));
    let accepting = accept(share, &server, &files);
    let has_heard_signal = told_to_end(&mut signals, &service.listening).await?;
    service.health.drain();
    service.listening.close();
    reloading.abort();
    if worker.index == 0 && !service.listening.is_given_away() {
        notify::stopping();
    }
    let draining = anello::spawn({
        let server = server.clone();
        async move {
            end_accepting(accepting).await;
            server.drain().await
        }
    });
    let second = anello::spawn(async move {
        if !has_heard_signal {
            // The first one asks for what is being done already; another worker may have heard it before.
            signals.wait().await?;
        }
        let signal = signals.wait().await;
        server.end();
        signal
    });
    let cut = draining.await?;
    second.abort();
    if cut > 0 {
        tracing::warn!(connections = cut, "connections were closed before they were done");
    }
    Ok(())
}

/// Serves what comes to either kind of socket.
fn accept(share: Share, server: &Server, files: &Rc<Files>) -> Vec<JoinHandle<()>> {
    let answering = |files: &Rc<Files>| {
        let files = Rc::clone(files);
        async move |request: Request| files.answer(&request).await
    };
    let internet = share.internet.map(|member| server.serve(member, answering(files)));
    let unix = share.unix.map(|member| server.serve(member, answering(files)));
    internet.into_iter().chain(unix).collect()
}

/// Waits until there is no more to accept.
async fn end_accepting(accepting: Vec<JoinHandle<()>>) {
    for mut accepting in accepting {
        if timeout(LAST_ACCEPTS_WITHIN, &mut accepting).await.is_err() {
            tracing::warn!("clients still waited to be accepted when the server ended");
            accepting.abort();
        }
    }
}

/// Waits until there is a reason to end; whether it is a signal, or otherwise that accepting has ended.
async fn told_to_end(signals: &mut Signals, listening: &Listening) -> io::Result<bool> {
    let (mut signal, mut closed) = (pin!(signals.wait()), pin!(listening.closed()));
    poll_fn(|context| {
        if let Poll::Ready(signal) = signal.as_mut().poll(context) {
            return Poll::Ready(signal.map(|()| true));
        }
        closed.as_mut().poll(context).map(|()| Ok(false))
    })
    .await
}

/// Reads certificates anew, and has the log opened anew, at each SIGHUP.
async fn reload_on_hangup(service: Arc<Service>, server: Server, index: usize, hangups: io::Result<Signals>) {
    let Ok(mut hangups) = hangups else {
        return tracing::error!("SIGHUP cannot be waited for: certificates and the log stay as they are");
    };
    while hangups.wait().await.is_ok() {
        if index == 0 {
            notify::reloading();
        }
        if let (Some(log), 0) = (&service.log, index) {
            log.reopen();
        }
        let tls = service.tls.clone();
        match anello::spawn_blocking(move || tls.read()).await.unwrap_or_else(|error| Err(error.into())) {
            Ok(Some(config)) => server.set_tls(config),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "TLS goes on with the certificate that it has"),
        }
        if index == 0 {
            notify::ready(false);
        }
    }
}
