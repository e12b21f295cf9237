//! An HTTP client for the exporters of OpenTelemetry.

use std::time::Duration;

use anello::compat::{HyperExecutor, HyperTimer};
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use tokio::sync::{mpsc, oneshot};

use crate::tcp::TcpConnector;

/// Limit for the body of a response.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

type Reply = Result<Response<Bytes>, HttpError>;

/// Sends requests on an anello runtime. The exporters call it on threads of their own.
///
/// The functions of a provider that wait for an export (`force_flush`, `shutdown`) block: call them in
/// `anello::spawn_blocking`, because the runtime must be running meanwhile.
#[derive(Clone, Debug)]
pub struct OtlpClient(mpsc::UnboundedSender<(Request<Bytes>, oneshot::Sender<Reply>)>);

impl OtlpClient {
    /// Starts the client on the runtime of the calling thread. Each request has the given time limit.
    ///
    /// # Panics
    /// Panics if no anello runtime is running on the calling thread.
    pub fn new(time_limit: Duration) -> Self {
        let (sender, mut requests) = mpsc::unbounded_channel::<(Request<Bytes>, oneshot::Sender<Reply>)>();
        let client: Client<_, Full<Bytes>> =
            Client::builder(HyperExecutor).pool_timer(HyperTimer).build(TcpConnector);
        anello::spawn(async move {
            while let Some((request, reply)) = requests.recv().await {
                let response = client.request(request.map(Full::new));
                anello::spawn(async move {
                    let collected = async {
                        let (parts, body) = response.await?.into_parts();
                        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?;
                        Ok(Response::from_parts(parts, body.to_bytes()))
                    };
                    let result = match anello::time::timeout(time_limit, collected).await {
                        Ok(result) => result,
                        Err(elapsed) => Err(elapsed.into()),
                    };
                    // The exporter may have stopped waiting.
                    drop(reply.send(result));
                })
                .detach();
            }
        })
        .detach();
        Self(sender)
    }
}

#[async_trait]
impl HttpClient for OtlpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (reply, response) = oneshot::channel();
        self.0.send((request, reply))?;
        response.await?
    }
}
