//! Deadlines and drains while a partition separates the server from its client, in virtual time.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::sim::{SimModel, Simulation};
use anello::time::{Instant, sleep, timeout};
use anello_http::{Body, Request, Response, Server};
use bytes::Bytes;
use futures_util::stream;

use super::servers::{DRAIN_TIMEOUT, options};

/// The state in which a connection waits for its deadline.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    HalfHead,
    Idle,
    HalfBody,
    UnreadResponse,
    SlowHandler,
}

async fn handle(mut request: Request) -> Response {
    match request.path() {
        "/upload" => drop(request.body().collect().await),
        "/slow" => sleep(Duration::from_secs(1000)).await,
        "/large" => {
            let chunks = stream::repeat_with(|| Ok(Bytes::from(vec![7; 10_000])));
            return Response::new(200).with_body(Body::stream(chunks));
        }
        _ => {}
    }
    Response::text("ciao")
}

/// Runs a server, and a client that is separated from it once the server has received all bytes of the client. Then
/// drains the server, or waits until its connection has been closed by a deadline. Returns the time that this takes, the
/// number of aborted connections, and the result of reading the rest of the response after the end of the partition.
fn separate(model: SimModel, case: Case, drains: bool) -> (Duration, usize, io::Result<usize>) {
    let mut sim = Simulation::builder().model(model).build();
    let is_separated = Rc::new(Cell::new(false));
    let result = Rc::new(Cell::new(None));
    let (separated, stored) = (Rc::clone(&is_separated), Rc::clone(&result));
    sim.host("server", move || {
        let (separated, stored) = (Rc::clone(&separated), Rc::clone(&stored));
        async move {
            let server = Server::builder().options(options(false)).build();
            let accepting = server.serve(TcpListener::bind("0.0.0.0:80")?, handle);
            while !separated.get() {
                sleep(Duration::from_millis(1)).await;
            }
            let (start, mut aborted) = (Instant::now(), 0);
            assert_eq!(server.connections(), 1);
            if drains {
                accepting.abort();
                aborted = server.drain().await;
            }
            while server.connections() > 0 && start.elapsed() < Duration::from_secs(60) {
                sleep(Duration::from_millis(1)).await;
            }
            stored.set(Some((start.elapsed(), aborted)));
            std::future::pending().await
        }
    });
    let (control, finished, rest) = (sim.control(), Rc::clone(&result), Rc::new(Cell::new(None)));
    let stored_rest = Rc::clone(&rest);
    sim.client("client", async move {
        let mut stream = TcpStream::connect("server:80").await?;
        let request = match case {
            Case::HalfHead => "GET / HTTP/1.1\r\nHost: ser",
            Case::Idle => "GET / HTTP/1.1\r\nHost: server\r\n\r\n",
            Case::HalfBody => "POST /upload HTTP/1.1\r\nHost: server\r\nContent-Length: 10\r\n\r\n12345",
            Case::UnreadResponse => "GET /large HTTP/1.1\r\nHost: server\r\n\r\n",
            Case::SlowHandler => "GET /slow HTTP/1.1\r\nHost: server\r\n\r\n",
        };
        stream.write_all(request.as_bytes()).await?;
        sleep(Duration::from_millis(100)).await;
        control.partition("client", "server");
        is_separated.set(true);
        while finished.get().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
        control.repair("client", "server");
        let reading = async {
            let mut bytes = 0;
            while let Some(chunk) = stream.recv().await? {
                bytes += chunk.len();
            }
            Ok(bytes)
        };
        stored_rest.set(Some(timeout(Duration::from_secs(60), reading).await.expect("the connection ends")));
        Ok(())
    });
    sim.run().unwrap_or_else(|error| panic!("{model:?}, {case:?}: {error}\n{}", sim.trace()));
    let (elapsed, aborted) = result.get().expect("a result");
    (elapsed, aborted, rest.take().expect("a result"))
}

/// The largest delay of a deadline: two intervals of the timer.
fn tolerance() -> Duration {
    2 * options(false).timer_resolution + Duration::from_millis(10)
}

/// Checks that the client does not take a part of a response for a complete one.
fn assert_incomplete(case: Case, rest: &io::Result<usize>) {
    let is_right = match case {
        Case::UnreadResponse => rest.is_err(),
        Case::SlowHandler => matches!(rest, Ok(0) | Err(_)),
        Case::HalfHead | Case::Idle | Case::HalfBody => true,
    };
    assert!(is_right, "{case:?}: {rest:?}");
}

#[test]
fn deadlines_expire_during_a_partition() {
    let options = options(false);
    let request_timeout = options.request_timeout.expect("a timeout");
    for model in [SimModel::Completion, SimModel::Readiness] {
        for (case, limit, lingers) in [
            (Case::HalfHead, options.header_timeout, true),
            (Case::Idle, options.keep_alive_timeout, true),
            (Case::HalfBody, options.body_timeout, true),
            (Case::UnreadResponse, options.send_timeout, false),
            (Case::SlowHandler, request_timeout, false),
        ] {
            let (elapsed, _, rest) = separate(model, case, false);
            // A part of the time passes before the partition.
            let (min, max) = (limit - Duration::from_millis(200), limit + tolerance());
            let max = if lingers { max + options.linger_timeout + tolerance() } else { max };
            assert!(elapsed >= min && elapsed <= max, "{model:?}, {case:?}: after {elapsed:?}");
            assert_incomplete(case, &rest);
        }
    }
}

#[test]
fn drain_ends_in_time_during_a_partition() {
    for model in [SimModel::Completion, SimModel::Readiness] {
        for case in [Case::UnreadResponse, Case::SlowHandler, Case::Idle] {
            let (elapsed, aborted, rest) = separate(model, case, true);
            let max = DRAIN_TIMEOUT + Duration::from_secs(1);
            assert!(elapsed <= max, "{model:?}, {case:?}: {elapsed:?}");
            assert_eq!(aborted, usize::from(case != Case::Idle), "{model:?}, {case:?}");
            assert_incomplete(case, &rest);
        }
    }
}
