//! TLS in the lab: cipher suites and the servers' certificate.
//!
//! All contenders use the same self-signed certificate, created for the run. The load generator offers only the cipher
//! suite of the cell, so all servers use the same one.

use std::io;
use std::path::PathBuf;

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use tempfile::TempDir;

use crate::plan::cell::Cell;
pub use crate::plan::cipher::{Cipher, SERVER_NAME};
use crate::plan::contender::{CERTIFICATE, Contender, KEY};
use crate::run::temporary;

const CERTIFICATE_FILE: &str = "certificate.pem";
const KEY_FILE: &str = "key.pem";

/// A self-signed certificate (ECDSA, P-256) and its key, in a directory that only this user can open. Dropping it
/// removes the files.
#[derive(Debug)]
pub struct Identity {
    directory: TempDir,
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
        let directory = temporary::create("anello-lab-tls-", 0o700)?;
        temporary::write(&directory, CERTIFICATE_FILE, certificate.pem().as_bytes(), 0o600)?;
        temporary::write(&directory, KEY_FILE, key.serialize_pem().as_bytes(), 0o600)?;
        Ok(Identity { directory })
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

/// Returns the contender with [`CERTIFICATE`] and [`KEY`] in its arguments replaced by the paths in `identity`.
pub(crate) fn with_certificate(
    contender: Contender,
    identity: Option<&Identity>,
) -> Result<Contender, String> {
    if !contender.serves_tls() {
        return Ok(contender);
    }
    let identity = identity.ok_or("no certificate for TLS (configure the machine with an identity)")?;
    let contender = contender.replacing(CERTIFICATE, &identity.certificate().to_string_lossy());
    Ok(contender.replacing(KEY, &identity.key().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::plan::site::Target;

    #[test]
    fn identity_is_private_and_removed_on_drop() {
        let identity = Identity::make().unwrap();
        let (certificate, key) = (identity.certificate(), identity.key());
        let text = |file: &Path| fs::read_to_string(file).unwrap();
        assert!(text(&certificate).starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(text(&key).starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        drop(identity);
        assert!(!key.exists() && !certificate.parent().unwrap().exists());
    }

    #[test]
    fn for_cells_creates_identity_only_for_tls_cells() {
        let plain = Cell::http(Target::Hello, 1);
        assert!(Identity::for_cells(&[plain, Cell::echo(1, 1)]).unwrap().is_none());
        let secure = Cell { workload: plain.workload.under(Cipher::Aes256Gcm), ..plain };
        assert!(Identity::for_cells(&[plain, secure]).unwrap().is_some());
    }

    #[test]
    fn with_certificate_replaces_placeholders() {
        let contender = |words: &[&str]| Contender::new("a", Path::new("x"), words);
        let plain = contender(&["--addr", "127.0.0.1:0"]);
        assert_eq!(with_certificate(plain.clone(), None), Ok(plain));
        let tls = contender(&["--pair={certificate}:{key}"]);
        assert!(with_certificate(tls.clone(), None).unwrap_err().contains("no certificate"));
        let identity = Identity::make().unwrap();
        let pair = format!("--pair={}:{}", identity.certificate().display(), identity.key().display());
        assert_eq!(with_certificate(tls, Some(&identity)).unwrap().arguments, [pair]);
    }
}
