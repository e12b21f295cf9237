//! TLS configurations with a self-signed certificate, and a client that sends a request without reading the response.

use std::io::Write;
use std::sync::Arc;

use anello::net::TcpStream;
use anello_http::server::TlsConfig;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};

/// Returns a server configuration with a self-signed certificate, and a client configuration that trusts it.
pub fn pair() -> (TlsConfig, Arc<ClientConfig>) {
    let certified_key =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("generate certificate");
    let key = certified_key.signing_key.serialize_der().try_into().expect("valid key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let chain = vec![certified_key.cert.der().clone()];
    let server = server
        .expect("protocol versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("matching key");
    let mut roots = RootCertStore::empty();
    roots.add(certified_key.cert.der().clone()).expect("valid certificate");
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = client.expect("protocol versions").with_root_certificates(roots).with_no_client_auth();
    (TlsConfig::new(server), Arc::new(client))
}

/// Completes the TLS handshake and sends a request. Bytes received after the handshake are not decrypted.
pub async fn send_request(stream: &mut TcpStream, config: Arc<ClientConfig>, request: &[u8]) {
    let name = ServerName::try_from("localhost").expect("valid server name");
    let mut tls = ClientConnection::new(config, name).expect("TLS client");
    // Buffered until the handshake is complete.
    tls.writer().write_all(request).expect("buffer plaintext");
    loop {
        let mut ciphertext = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut ciphertext).expect("write to a vector");
        }
        stream.write_all(&ciphertext).await.expect("send");
        if !tls.is_handshaking() {
            return;
        }
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).await.expect("receive");
        assert!(count > 0, "EOF during the handshake");
        let mut received = &bytes[..count];
        while !received.is_empty() {
            tls.read_tls(&mut received).expect("read from a slice");
            tls.process_new_packets().expect("valid TLS records");
        }
    }
}
