//! TLS in the lab: cipher suites and the servers' certificate.
//!
//! All contenders use the same self-signed certificate, created for the run. The load generator offers only the cipher
//! suite of the cell, so all servers use the same one.

use std::fs;
use std::io;
use std::path::PathBuf;

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::plan::cell::Cell;
pub use crate::plan::cell::Cipher;
use crate::plan::contender::{CERTIFICATE, Contender, KEY};
use crate::run::machine::MachineError;
use crate::run::temporary;

/// Server name in the certificate and in the load generator's requests.
pub const SERVER_NAME: &str = "localhost";

const CERTIFICATE_FILE: &str = "certificate.pem";
const KEY_FILE: &str = "key.pem";

/// A self-signed certificate (ECDSA, P-256) and its key, in a directory that only this user can open. Dropping it
/// removes the files.
#[derive(Debug)]
pub struct Identity {
    directory: TempDir,
}

/// The PEM texts of an [`Identity`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IdentityPem {
    certificate: String,
    key: String,
}

impl Identity {
    /// Creates a key and a certificate for `localhost` in the directory for temporary files (`TMPDIR` or `/tmp`).
    ///
    /// # Errors
    /// Returns an error with the path if an operation fails.
    pub fn make() -> io::Result<Identity> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(io::Error::other)?;
        let parameters = CertificateParams::new([SERVER_NAME.to_owned()]).map_err(io::Error::other)?;
        let certificate = parameters.self_signed(&key).map_err(io::Error::other)?;
        Identity::from_pem(&IdentityPem { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Creates an identity from the PEM texts of another one's certificate and key.
    ///
    /// # Errors
    /// Returns an error with the path if a file cannot be written.
    pub fn from_pem(IdentityPem { certificate, key }: &IdentityPem) -> io::Result<Identity> {
        let directory = temporary::create("anello-lab-tls-", 0o700)?;
        temporary::write(&directory, CERTIFICATE_FILE, certificate.as_bytes(), 0o600)?;
        temporary::write(&directory, KEY_FILE, key.as_bytes(), 0o600)?;
        Ok(Identity { directory })
    }

    /// Returns the PEM texts of the certificate and of the key.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read.
    pub fn to_pem(&self) -> io::Result<IdentityPem> {
        let (certificate, key) = (self.certificate(), self.key());
        Ok(IdentityPem { certificate: fs::read_to_string(certificate)?, key: fs::read_to_string(key)? })
    }

    /// Creates an identity if any of these cells uses TLS.
    ///
    /// # Errors
    /// Returns the errors of [`make`](Self::make).
    pub fn for_cells(cells: &[Cell]) -> io::Result<Option<Identity>> {
        let is_needed = cells.iter().any(|cell| cell.workload.cipher().is_some());
        is_needed.then(Identity::make).transpose()
    }

    /// Returns the path of the certificate (PEM).
    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join(CERTIFICATE_FILE)
    }

    /// Returns the path of the private key (PEM).
    pub fn key(&self) -> PathBuf {
        self.directory.path().join(KEY_FILE)
    }
}

/// Replaces [`CERTIFICATE`] and [`KEY`] in the contender's arguments with the paths in `identity`.
pub(crate) fn with_certificate(
    contender: Contender,
    identity: Option<&Identity>,
) -> Result<Contender, MachineError> {
    if !contender.serves_tls() {
        return Ok(contender);
    }
    let identity = identity.ok_or(MachineError::NoIdentity)?;
    let contender = contender.replacing(CERTIFICATE, &identity.certificate().to_string_lossy());
    Ok(contender.replacing(KEY, &identity.key().to_string_lossy()))
}
