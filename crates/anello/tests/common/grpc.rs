//! gRPC of tonic on the streams: a service that knows nothing of anello, and a client of it, over hyper's HTTP/2.
//!
//! Written once for the streams of every family; a test program names its own as `crate::family`.

use std::pin::Pin;
use std::task::{Context, Poll};

use anello::compat::{HyperExecutor, HyperTimer};
use anello::spawn;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::server::conn::http2;
use hyper::{Request, Response, Uri, client};
use hyper_util::service::TowerToHyperService;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Streaming};
use tonic_health::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_check_response};

use crate::family::{on_every_setup, pair};

/// A connection as tonic's clients want it: a service of tower.
#[derive(Clone)]
struct Channel(SendRequest<Body>);

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

fn about(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

async fn next(answers: &mut Streaming<HealthCheckResponse>) -> health_check_response::ServingStatus {
    answers.message().await.unwrap().unwrap().status()
}

#[test]
fn grpc_answers_once_streams_and_refuses_in_trailers() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut reporter, service) = tonic_health::server::health_reporter();
            reporter.set_service_status("echo", ServingStatus::Serving).await;
            let (client, server) = pair().await.unwrap();
            let mut builder = http2::Builder::new(HyperExecutor);
            let service = TowerToHyperService::new(service);
            let serving = spawn(builder.timer(HyperTimer).serve_connection(server, service));
            let (sender, connection) = client::conn::http2::handshake(HyperExecutor, client).await.unwrap();
            let connection = spawn(connection);
            let origin = Uri::from_static("http://anello.test");
            let mut client = HealthClient::with_origin(Channel(sender), origin);

            let answer = client.check(about("echo")).await.unwrap().into_inner();
            assert_eq!(answer.status(), health_check_response::ServingStatus::Serving);
            assert_eq!(client.check(about("none")).await.unwrap_err().code(), Code::NotFound);

            // What changes on the server comes down a stream that is open, while other calls go on.
            let mut answers = client.watch(about("echo")).await.unwrap().into_inner();
            assert_eq!(next(&mut answers).await, health_check_response::ServingStatus::Serving);
            reporter.set_service_status("echo", ServingStatus::NotServing).await;
            assert_eq!(next(&mut answers).await, health_check_response::ServingStatus::NotServing);
            let answer = client.check(about("echo")).await.unwrap().into_inner();
            assert_eq!(answer.status(), health_check_response::ServingStatus::NotServing);
            reporter.clear_service_status("echo").await;
            assert!(answers.message().await.unwrap().is_none(), "the stream ends with its service");

            drop((answers, client));
            connection.await.unwrap().unwrap();
            serving.await.unwrap().unwrap();
        });
    });
}
