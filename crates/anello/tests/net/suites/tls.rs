//! Hyper over TLS (tokio-rustls) on anello streams. Services that use `compat` can use this combination instead of
//! `anello-http`'s own TLS.
//!
//! Shared by all stream families. Each test program defines its family as `super::family`.

use std::sync::Arc;

use anello::compat::{HyperExecutor, HyperTimer};
use anello::spawn;
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Version, client};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::family::{on_every_setup, pair};
use crate::common::{assert_same_bytes, join, pattern};

const NAME: &str = "anello.test";

/// Configurations for a server with a self-signed certificate, and for clients that trust only this certificate.
fn configurations() -> (ServerConfig, ClientConfig) {
    let generated = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let certificate = CertificateDer::from(generated.cert);
    let key = PrivateKeyDer::try_from(generated.signing_key.serialize_der()).unwrap();
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate.clone()).unwrap();
    let mut server =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (server, ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth())
}

#[test]
fn axum_router_over_tls_works_with_both_protocols() {
    let (server, client) = configurations();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    for (protocol, version) in [("http/1.1", Version::HTTP_11), ("h2", Version::HTTP_2)] {
        let mut client = client.clone();
        client.alpn_protocols = vec![protocol.into()];
        let connector = TlsConnector::from(Arc::new(client));
        let acceptor = acceptor.clone();
        on_every_setup(move |setup| {
            setup.run(async {
                let (client, server) = pair().await.unwrap();
                let name = ServerName::try_from(NAME).unwrap();
                let (client, server) = join(connector.connect(name, client), acceptor.accept(server)).await;
                let (client, server) = (TokioIo::new(client.unwrap()), TokioIo::new(server.unwrap()));
                let router = Router::new().route("/back", post(|body: Bytes| async { body }));
                let mut builder = auto::Builder::new(HyperExecutor);
                builder.http1().timer(HyperTimer);
                builder.http2().timer(HyperTimer);
                let serving = builder.serve_connection(server, TowerToHyperService::new(router));
                let serving = spawn(serving.into_owned());

                // Larger than the buffers of any layer.
                let body = pattern(40, 1 << 20);
                let request = Request::post(format!("https://{NAME}/back"))
                    .header("host", NAME)
                    .body(Full::<Bytes>::from(body.clone()))
                    .unwrap();
                let (response, connection) = if version == Version::HTTP_2 {
                    let (mut sender, connection) =
                        client::conn::http2::handshake(HyperExecutor, client).await.unwrap();
                    let connection = spawn(connection);
                    (sender.send_request(request).await.unwrap(), connection)
                } else {
                    let (mut sender, connection) = client::conn::http1::handshake(client).await.unwrap();
                    let connection = spawn(connection);
                    (sender.send_request(request).await.unwrap(), connection)
                };
                assert_eq!(response.version(), version);
                assert_same_bytes(&response.into_body().collect().await.unwrap().to_bytes(), &body);
                connection.await.unwrap().unwrap();
                // The server task ends. Whether its close_notify reaches the client depends on timing.
                drop(serving.await);
            });
        });
    }
}
