//! TLS clients.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::served::connect;

/// Writes a self-signed certificate for `localhost` to the files, and returns a client configuration that trusts it.
pub fn create_identity(certificate: &Path, key: &Path) -> Arc<ClientConfig> {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("certificate");
    fs::write(certificate, identity.cert.pem()).expect("write file");
    fs::write(key, identity.signing_key.serialize_pem()).expect("write file");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::clone(identity.cert.der())).expect("certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(builder.expect("protocol versions").with_root_certificates(roots).with_no_client_auth())
}

/// Connects to a TLS server. The handshake takes place on the first read or write.
pub fn connect_tls(config: &Arc<ClientConfig>, address: &str) -> StreamOwned<ClientConnection, TcpStream> {
    let server_name = ServerName::try_from("localhost").expect("valid name");
    StreamOwned::new(
        ClientConnection::new(Arc::clone(config), server_name).expect("TLS client"),
        connect(address),
    )
}
