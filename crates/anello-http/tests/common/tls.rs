//! TLS that trusts itself, and a client that only asks.

use std::io::Write;
use std::sync::Arc;

use anello::net::TcpStream;
use anello_http::server::TlsConfig;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};

/// A server's and a client's configuration that belong together.
pub fn pair() -> (TlsConfig, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = made.signing_key.serialize_der().try_into().expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let chain = vec![made.cert.der().clone()];
    let server =
        server.expect("versions").with_no_client_auth().with_single_cert(chain, key).expect("a pair");
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a certificate");
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = client.expect("versions").with_root_certificates(roots).with_no_client_auth();
    (TlsConfig::new(server), Arc::new(client))
}

/// Shakes hands and sends a request. What comes then is left encrypted.
pub async fn send_request(stream: &mut TcpStream, config: Arc<ClientConfig>, request: &[u8]) {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut tls = ClientConnection::new(config, name).expect("a client");
    // It is kept until the handshake is done.
    tls.writer().write_all(request).expect("taken");
    loop {
        let mut ciphertext = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut ciphertext).expect("written");
        }
        stream.write_all(&ciphertext).await.expect("sends");
        if !tls.is_handshaking() {
            return;
        }
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).await.expect("bytes");
        assert!(count > 0, "the server ended within the handshake");
        let mut received = &bytes[..count];
        while !received.is_empty() {
            tls.read_tls(&mut received).expect("read");
            tls.process_new_packets().expect("TLS");
        }
    }
}
