//! TLS for HTTP loads, based on rustls, which performs no I/O: ciphertext is sent through the same transport that
//! plaintext connections use.
//!
//! ```text
//!   TlsOptions ── Tls::new: roots, suite ──► Tls          one per load, shared by all threads
//!                                             │ Tls::connector
//!                                          TlsConnector   one per thread; owns the spare plaintext buffer
//!                                             │ handshake
//!   requests ──► session ──► ciphertext ──► TlsStream ◄── ciphertext ◄── session ──► replies
//! ```

mod error;
mod session_cache;
mod verifier;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore};
use serde::{Deserialize, Serialize};

pub(crate) use error::TlsError;
pub use error::TlsRemedy;
use session_cache::SessionCache;
use verifier::{TrustPolicy, Verifier};

/// TLS settings of a load run. By default, the system trust store is used to verify certificates, and every connection
/// performs a full handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Accepted server certificates.
    pub trust: Trust,
    /// Name of the only cipher suite to offer, one of [`cipher_suite_names`]. If `None`, all suites are offered. TLS
    /// 1.3 and 1.2 have different suites, so a suite also determines the TLS version.
    pub cipher: Option<String>,
    /// Whether sessions are resumed. Resumption avoids most of the cost of a handshake.
    pub session_resumption: bool,
}

/// Server certificates that a load run accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// Certificates that are valid for the server name and signed by a CA in the system trust store (`SSL_CERT_FILE`
    /// and `SSL_CERT_DIR` if set, otherwise the default location).
    #[default]
    System,
    /// Certificates that are valid for the server name and are in this PEM file or signed by a CA in it.
    CaFile(PathBuf),
    /// Only the first certificate in this PEM file. Its name and validity period are not checked, which makes this the
    /// cheapest verification.
    Certificate(PathBuf),
    /// Any certificate. The identity of the server is not verified.
    AcceptAny,
}

/// TLS configuration for the connections of a load run to one server. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Tls {
    options: Arc<TlsOptions>,
    pub(crate) server_name: ServerName<'static>,
    pub(crate) config: Arc<ClientConfig>,
}

impl Tls {
    /// Loads the trusted certificates. `server_name` is a DNS name, which is sent to the server (SNI), or an IP
    /// address, which is not sent. The server certificate must be valid for this name.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the server name is invalid or the cipher suite is unknown, `InvalidData` if a file
    /// contains no valid certificates, `NotFound` if the system trust store is empty, and any error from reading a
    /// file.
    pub fn new(server_name: &str, options: TlsOptions) -> io::Result<Self> {
        let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidInput, problem);
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| invalid(format!("invalid TLS server name {server_name:?}")))?;
        let provider = provider(options.cipher.as_deref()).map_err(invalid)?;
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(error.to_string()))?;
        let trust_policy = match &options.trust {
            Trust::System => None,
            Trust::CaFile(file) => Some(load_ca_file(file, &provider)?),
            Trust::Certificate(file) => {
                Some(TrustPolicy::Certificate(read_certificates(file)?.swap_remove(0)))
            }
            Trust::AcceptAny => Some(TrustPolicy::AcceptAny),
        };
        let builder = match trust_policy {
            None => builder.with_root_certificates(system_roots()?),
            Some(trust_policy) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Verifier { trust_policy, algorithms })),
        };
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = match options.session_resumption {
            true => Resumption::store(Arc::new(SessionCache::default())),
            false => Resumption::disabled(),
        };
        Ok(Self { options: Arc::new(options), server_name: name, config: Arc::new(config) })
    }

    /// Returns the name or IP address for which certificates must be valid.
    pub fn server_name(&self) -> String {
        self.server_name.to_str().into_owned()
    }

    /// Returns the options.
    pub fn options(&self) -> &TlsOptions {
        &self.options
    }
}

/// Returns the names of all cipher suites, such as `TLS13_AES_128_GCM_SHA256`. TLS 1.3 suites come first.
pub fn cipher_suite_names() -> impl Iterator<Item = &'static str> {
    ring::ALL_CIPHER_SUITES.iter().filter_map(|suite| suite.suite().as_str())
}

/// Returns the crypto provider, limited to one cipher suite if `cipher` is given.
fn provider(cipher: Option<&str>) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = ring::default_provider();
    if let Some(name) = cipher {
        let canonical_name = canonical(name);
        provider.cipher_suites.retain(|suite| suite.suite().as_str() == Some(&canonical_name));
        if provider.cipher_suites.is_empty() {
            let names: Vec<&str> = cipher_suite_names().collect();
            return Err(format!("unknown cipher suite {name:?} (available: {})", names.join(", ")));
        }
    }
    Ok(Arc::new(provider))
}

/// Converts the name of a cipher suite to the form that rustls uses. For TLS 1.3 suites, the IANA registry and most
/// tools use names without a version, such as `TLS_AES_128_GCM_SHA256`.
fn canonical(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    match name.strip_prefix("TLS_") {
        Some(rest) if !name.contains("_WITH_") => format!("TLS13_{rest}"),
        _ => name,
    }
}

fn system_roots() -> io::Result<RootCertStore> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(loaded.certs);
    if added > 0 {
        return Ok(roots);
    }
    let cause = loaded.errors.first().map_or_else(|| "no certificates".to_owned(), ToString::to_string);
    let remedy = "install ca-certificates, specify a CA file, or disable verification";
    let text = format!("cannot load the system trust store: {cause} ({remedy})");
    Err(TlsError::io_error(io::ErrorKind::NotFound, text, Some(TlsRemedy::Trust)))
}

fn load_ca_file(file: &Path, provider: &Arc<CryptoProvider>) -> io::Result<TrustPolicy> {
    let certificates = read_certificates(file)?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| invalid_certificates(file, &error))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    let verifier = verifier.map_err(|error| invalid_certificates(file, &error))?;
    Ok(TrustPolicy::CaFile { verifier, certificates })
}

/// Reads all certificates in a PEM file. Returns an error if there are none.
fn read_certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = std::fs::read(file)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot read {}: {error}", file.display())))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| invalid_certificates(file, &error))?;
    if all.is_empty() { Err(invalid_certificates(file, &"file contains no certificates")) } else { Ok(all) }
}

fn invalid_certificates(file: &Path, problem: &dyn fmt::Display) -> io::Error {
    let text = format!("cannot load PEM certificates from {}: {problem}", file.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A handshake outcome, and the number of handshakes with this outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeSummary {
    /// `TLS 1.3` or `TLS 1.2`.
    pub version: String,
    /// Name of the cipher suite, as returned by [`cipher_suite_names`].
    pub cipher_suite: String,
    /// Key exchange group, such as `X25519`. `None` if the session was resumed without a key exchange.
    pub key_exchange: Option<String>,
    /// Whether a session was resumed.
    pub resumed: bool,
    /// Number of handshakes.
    pub count: u64,
}

impl HandshakeSummary {
    pub(crate) fn of(tls: &ClientConnection) -> Self {
        const UNKNOWN: &str = "unknown";
        let version = match tls.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLS 1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
            _ => UNKNOWN,
        };
        let suite = tls.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        let group = tls.negotiated_key_exchange_group();
        Self {
            version: version.to_owned(),
            cipher_suite: suite.unwrap_or(UNKNOWN).to_owned(),
            key_exchange: group.map(|group| group.name().as_str().unwrap_or(UNKNOWN).to_owned()),
            resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
            count: 1,
        }
    }

    /// Describes the outcome, for example `TLS 1.3, TLS13_AES_128_GCM_SHA256, X25519`.
    pub fn in_words(&self) -> String {
        let mut text = format!("{}, {}", self.version, self.cipher_suite);
        if let Some(group) = &self.key_exchange {
            text += &format!(", {group}");
        }
        if self.resumed {
            text += ", resumed";
        }
        text
    }

    /// Adds the count of `other` to the entry of `all` with the same outcome. A linear search is sufficient because a
    /// load on one server has few distinct outcomes.
    pub fn add(all: &mut Vec<Self>, other: Self) {
        match all.iter_mut().find(|known| known.outcome() == other.outcome()) {
            Some(known) => known.count += other.count,
            None => all.push(other),
        }
    }

    fn outcome(&self) -> (&str, &str, Option<&str>, bool) {
        (&self.version, &self.cipher_suite, self.key_exchange.as_deref(), self.resumed)
    }
}
