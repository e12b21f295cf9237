//! Keep-alive connections that move from a busy worker to another one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anello::Workers;
use anello::net::TcpListener;
use anello::server::{ListenerGroup, PendingConnections, Rebalancer};
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::{Request, Response, Server};
use anello_test::{main_drivers, on_each};

use crate::common::{metric_value, with_long_timeouts};

const CLIENTS: usize = 6;

/// Sends two requests at a time, and checks the responses, until `stop` is set.
fn exchange(client: usize, address: std::net::SocketAddr, stop: &AtomicBool) {
    let mut stream = StdStream::connect(address).expect("a connection");
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let paths = [0, 1].map(|index| format!("/{client}/{number}/{index}"));
        let requests = paths.each_ref().map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        stream.write_all(requests.concat().as_bytes()).expect("send succeeds");
        for path in &paths {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a status line");
            assert_eq!(line, "HTTP/1.1 200 OK\r\n");
            while line != "\r\n" {
                line.clear();
                assert_ne!(reader.read_line(&mut line).expect("a field"), 0);
            }
            let mut body = vec![0; path.len()];
            reader.read_exact(&mut body).expect("a body");
            assert_eq!(body, path.as_bytes());
        }
    }
}

#[test]
fn busy_connections_move_to_idle_worker_without_losing_requests() {
    on_each(main_drivers(), |setup| {
        let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1).expect("a group");
        let address = group.sockets().expect("sockets")[0].local_addr().expect("an address");
        let metrics = ServerMetrics::new(MetricsOptions::default().workers(2));
        let permits = Arc::new(AtomicUsize::new(0));
        let (joined, counted, shared) = (group.clone(), metrics.clone(), Arc::clone(&permits));
        let rebalancer = Rebalancer::new(2);
        let runtime = setup.builder();
        let workers = Workers::builder().unpinned_workers(2).runtime(runtime).start(move |worker| {
            let handler = async |request: Request| Response::text(request.path().to_owned());
            let builder = Server::builder().options(with_long_timeouts().max_connections(CLIENTS));
            let builder = builder.shared_connection_count(Arc::clone(&shared));
            let builder = builder.metrics(counted.worker(worker.index).expect("not in use"));
            let server = builder.rebalancer(rebalancer.join(worker.index)).build();
            let joined = joined.clone();
            async move {
                let moving = server.serve_moved(handler);
                if worker.index == 0 {
                    let accepting = server.serve(joined.join(0), handler);
                    accepting.await.expect("no panic");
                } else {
                    joined.closed().await;
                }
                server.refuse_moved();
                moving.await.expect("no panic");
                server.drain().await
            }
        });
        let workers = workers.expect("workers");
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..CLIENTS).map(|client| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || exchange(client, address, &stop))
        });
        let clients: Vec<_> = clients.collect();
        let count = |name: &str| metric_value(&metrics, &format!("anello_http_connections_{name}"));
        // Clients that fail also end the wait.
        while count("moved_total") < 2 && !clients.iter().any(thread::JoinHandle::is_finished) {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("no client fails"));
        group.close(PendingConnections::Serve);
        assert_eq!(workers.join().expect("the workers exit"), [0, 0], "{setup}");
        assert_eq!((count("accepted_total"), count("open")), (CLIENTS, 0), "{setup}");
        assert_eq!(permits.load(Ordering::Relaxed), 0, "{setup}");
    });
}
