//! TLS under HTTP, by rustls, over the connections of the load.
//!
//! ```text
//!   TlsOptions ── Tls::new: roots, suite ──► Tls    one for all threads of a load
//!                                             │ Tls::client
//!                                          Client  one for each thread: where memory for plaintext is kept
//!                                             │ handshake
//!   requests ──► session ──► ciphertext ──► TlsStream ◄── ciphertext ◄── session ──► replies
//! ```
//!
//! rustls does no I/O here: what it wants to send is handed to the transport as everything else is.

mod error;
mod handshakes;
mod session_cache;
mod stream;
mod verifier;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

pub use handshakes::HandshakeSummary;

pub(crate) use error::TlsError;
pub(crate) use handshakes::{HandshakeCounts, Negotiated};
use session_cache::SessionCache;
pub(crate) use stream::{TlsConnector, TlsStream};
use verifier::{TrustPolicy, Verifier};

/// The only protocol that is spoken over it (ALPN).
const PROTOCOL: &[u8] = b"http/1.1";

/// How a load uses TLS. By default as others do, but for sessions: each connection makes a full handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Which certificates are right.
    pub trust: Trust,
    /// The one cipher suite that is offered, by a name of [`cipher_suite_names`]; all that there are if there is none. TLS 1.3 and
    /// 1.2 have different suites, so that this decides upon the version, too.
    pub cipher: Option<String>,
    /// Whether sessions are taken up again, which saves a connection the greater part of its handshake.
    pub session_resumption: bool,
}

/// Which certificates of a server are right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those for the server's name that somebody has signed whom this system trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR`, or
    /// where the system keeps them).
    #[default]
    System,
    /// Those for the server's name that an authority in this file (PEM) has signed, or that are in it themselves.
    CaFile(PathBuf),
    /// The first of this file (PEM) alone, whatever it says: cheaper to verify than any other.
    Certificate(PathBuf),
    /// All: nobody knows who answers.
    AcceptAny,
}

/// TLS for the connections of a load to one server, ready to be used. Cloning it is cheap.
///
/// ```no_run
/// use std::net::SocketAddr;
///
/// use anello_load::{LoadConfig, Protocol, Tls, TlsOptions};
///
/// let server = SocketAddr::from(([127, 0, 0, 1], 8443));
/// let mut load = LoadConfig::http(server, "localhost", "/index.html");
/// if let Protocol::Http(http) = &mut load.protocol {
///     let cipher = Some("TLS13_AES_128_GCM_SHA256".to_owned());
///     http.tls = Some(Tls::new("localhost", TlsOptions { cipher, ..TlsOptions::default() })?);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Tls {
    options: Arc<TlsOptions>,
    server_name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Reads what is to be trusted. `server_name` is a name, which the server is told (SNI), or an IP address, which it is
    /// not; its certificate must be for it.
    ///
    /// # Errors
    /// `InvalidInput` for what is no name and for a suite that there is not; `InvalidData` when a file holds no certificates;
    /// what reading files may fail by.
    pub fn new(server_name: &str, options: TlsOptions) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| invalid(format!("{server_name:?} is no name of a server that TLS could verify")))?;
        let provider = provider(options.cipher.as_deref()).map_err(invalid)?;
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
            Some(trust_policy) => {
                let verifier = Arc::new(Verifier::new(trust_policy, &provider));
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
        };
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = match options.session_resumption {
            true => Resumption::store(Arc::new(SessionCache::default())),
            false => Resumption::disabled(),
        };
        Ok(Self { options: Arc::new(options), server_name: name, config: Arc::new(config) })
    }

    /// The name, or the address, that certificates must be for.
    #[must_use]
    pub fn server_name(&self) -> String {
        self.server_name.to_str().into_owned()
    }

    /// How it is used.
    #[must_use]
    pub fn options(&self) -> &TlsOptions {
        &self.options
    }

    /// What one thread of a load needs of it.
    pub(crate) fn connector(&self) -> Rc<TlsConnector> {
        Rc::new(TlsConnector::new(Arc::clone(&self.config), self.server_name.clone()))
    }
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        (&self.server_name, &self.options) == (&other.server_name, &other.options)
    }
}

impl Eq for Tls {}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tls")
            .field("server_name", &self.server_name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The names of all cipher suites, as in `TLS13_AES_128_GCM_SHA256`, those of TLS 1.3 first.
pub fn cipher_suite_names() -> impl Iterator<Item = &'static str> {
    ring::ALL_CIPHER_SUITES.iter().filter_map(|suite| suite.suite().as_str())
}

/// The cryptography, with one cipher suite if one is named.
fn provider(cipher: Option<&str>) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = ring::default_provider();
    if let Some(name) = cipher {
        let canonical_name = canonical(name);
        provider
            .cipher_suites
            .retain(|suite| suite.suite().as_str().is_some_and(|known| known == canonical_name));
        if provider.cipher_suites.is_empty() {
            let names: Vec<&str> = cipher_suite_names().collect();
            return Err(format!("{name:?} is no cipher suite: choose one of {}", names.join(", ")));
        }
    }
    Ok(Arc::new(provider))
}

/// A suite's name as rustls has it. The registry of IANA, and with it most programs, calls those of TLS 1.3 as if they were
/// of any version: `TLS_AES_128_GCM_SHA256`.
fn canonical(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    match name.strip_prefix("TLS_") {
        Some(rest) if !name.contains("_WITH_") => format!("TLS13_{rest}"),
        _ => name,
    }
}

/// Whom this system trusts.
fn system_roots() -> io::Result<RootCertStore> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(loaded.certs);
    if added > 0 {
        return Ok(roots);
    }
    let why = loaded.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
    let remedy = "install ca-certificates, name whose certificates are to be trusted, or verify nothing";
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("this system trusts no authorities: {why}; {remedy}"),
    ))
}

/// Trust in the certificates of this file.
fn load_ca_file(file: &Path, provider: &Arc<CryptoProvider>) -> io::Result<TrustPolicy> {
    let unusable = |error: &dyn fmt::Display| invalid_certificates(file, &error.to_string());
    let certificates = read_certificates(file)?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| unusable(&error))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let verifier = verifier.build().map_err(|error| unusable(&error))?;
    Ok(TrustPolicy::CaFile { verifier, certificates })
}

/// All certificates of a file, at least one.
fn read_certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = std::fs::read(file)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot read {}: {error}", file.display())))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| invalid_certificates(file, &error.to_string()))?;
    if all.is_empty() { Err(invalid_certificates(file, "there is none in it")) } else { Ok(all) }
}

fn invalid_certificates(file: &Path, why: &str) -> io::Error {
    let text = format!("{}: no certificates in PEM: {why}", file.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_known_by_both_of_their_names() {
        let names: Vec<&str> = cipher_suite_names().collect();
        assert!(names.contains(&"TLS13_AES_128_GCM_SHA256"), "{names:?}");
        for name in names {
            let provider = provider(Some(name)).unwrap();
            assert_eq!(provider.cipher_suites.len(), 1, "{name}");
            assert_eq!(provider.cipher_suites[0].suite().as_str(), Some(name));
        }
        for (name, known) in [
            ("tls_aes_128_gcm_sha256", "TLS13_AES_128_GCM_SHA256"),
            ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ] {
            assert_eq!(canonical(name), known);
            assert!(provider(Some(name)).is_ok());
        }
        assert!(provider(Some("RC4")).unwrap_err().contains("TLS13_AES_256_GCM_SHA384"));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let error = |name: &str, options: TlsOptions| Tls::new(name, options).unwrap_err().to_string();
        let trusting = |trust| TlsOptions { trust, ..TlsOptions::default() };
        assert!(error("a b", trusting(Trust::AcceptAny)).contains("\"a b\""));
        let absent = PathBuf::from("/no/such/file");
        assert!(error("a", trusting(Trust::CaFile(absent.clone()))).contains("/no/such/file: "));
        assert!(error("a", trusting(Trust::Certificate(absent))).contains("/no/such/file: "));
        let empty = tempfile::NamedTempFile::new().unwrap();
        let nothing = error("a", trusting(Trust::CaFile(empty.path().to_owned())));
        assert!(nothing.ends_with("no certificates in PEM: there is none in it"), "{nothing}");
        let cipher = Some("x".to_owned());
        assert!(error("a", TlsOptions { cipher, ..trusting(Trust::AcceptAny) }).contains("\"x\""));
    }

    #[test]
    fn what_is_used_alike_is_equal() {
        let tls = |name: &str, resume| {
            Tls::new(
                name,
                TlsOptions { trust: Trust::AcceptAny, session_resumption: resume, ..TlsOptions::default() },
            )
            .unwrap()
        };
        assert_eq!(tls("localhost", false), tls("localhost", false));
        assert_ne!(tls("localhost", false), tls("localhost", true));
        assert_ne!(tls("localhost", false), tls("::1", false));
    }
}
