//! Tonic's gRPC over hyper's HTTP/2 on anello streams: a service that is independent of anello, and a client.
//!
//! Shared by all stream families. Each test program defines its family as `super::family`.

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

use super::family::{on_every_setup, pair};

/// Connection in the form required by tonic's clients: a tower service.
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

fn check_request(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

async fn next(responses: &mut Streaming<HealthCheckResponse>) -> health_check_response::ServingStatus {
    responses.message().await.unwrap().unwrap().status()
}

#[test]
fn grpc_unary_streaming_and_error_responses_work() {
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

            let response = client.check(check_request("echo")).await.unwrap().into_inner();
            assert_eq!(response.status(), health_check_response::ServingStatus::Serving);
            assert_eq!(client.check(check_request("none")).await.unwrap_err().code(), Code::NotFound);

            // A status change on the server arrives on an open stream while other calls are being made.
            let mut responses = client.watch(check_request("echo")).await.unwrap().into_inner();
            assert_eq!(next(&mut responses).await, health_check_response::ServingStatus::Serving);
            reporter.set_service_status("echo", ServingStatus::NotServing).await;
            assert_eq!(next(&mut responses).await, health_check_response::ServingStatus::NotServing);
            let response = client.check(check_request("echo")).await.unwrap().into_inner();
            assert_eq!(response.status(), health_check_response::ServingStatus::NotServing);
            reporter.clear_service_status("echo").await;
            assert!(responses.message().await.unwrap().is_none(), "the stream must end with its service");

            drop((responses, client));
            connection.await.unwrap().unwrap();
            serving.await.unwrap().unwrap();
        });
    });
}
