//! Clients of servers under TLS.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::connect;

/// A certificate for `localhost` in these files, and a client that trusts it.
pub fn identity(certificate: &Path, key: &Path) -> Arc<ClientConfig> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    fs::write(certificate, made.cert.pem()).expect("written");
    fs::write(key, made.signing_key.serialize_pem()).expect("written");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::clone(made.cert.der())).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(builder.expect("versions").with_root_certificates(roots).with_no_client_auth())
}

/// A connection to that server, whose handshake comes with the first bytes.
pub fn tls(config: &Arc<ClientConfig>, address: &str) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").expect("a name");
    StreamOwned::new(ClientConnection::new(Arc::clone(config), name).expect("a client"), connect(address))
}
