//! TLS in the lab: cipher suites and the certificate of the servers.
//!
//! All contenders use the same self-signed certificate, created for the run. The load offers only the cipher suite
//! of the cell, so that all servers use the same one.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use tempfile::TempDir;

use crate::plan::cell::Cell;
pub use crate::plan::cipher::{Cipher, SERVER_NAME};
use crate::plan::contender::{CERTIFICATE, Contender, KEY};

/// A self-signed certificate (ECDSA, P-256) and its key, in a directory that only this user can open. Dropping it
/// removes the files.
#[derive(Debug)]
pub struct Identity {
    directory: TempDir,
}

impl Identity {
    /// Creates a key and a certificate for `localhost` in the directory for temporary files (`TMPDIR`, else `/tmp`).
    ///
    /// # Errors
    /// Returns the error of the failed operation, with its path.
    pub fn make() -> io::Result<Identity> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(io::Error::other)?;
        let parameters = CertificateParams::new([SERVER_NAME.to_owned()]).map_err(io::Error::other)?;
        let certificate = parameters.self_signed(&key).map_err(io::Error::other)?;
        let parent = std::env::temp_dir();
        let directory = tempfile::Builder::new().prefix("anello-lab-tls-").tempdir_in(&parent);
        let identity = Identity { directory: directory.map_err(|error| with_path(&parent, &error))? };
        write(&identity.certificate(), &certificate.pem())?;
        write(&identity.key(), &key.serialize_pem())?;
        Ok(identity)
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
        self.directory.path().join("certificate.pem")
    }

    /// Returns the path of the private key (PEM).
    pub fn key(&self) -> PathBuf {
        self.directory.path().join("key.pem")
    }
}

/// Returns the contender with [`CERTIFICATE`] and [`KEY`] in its arguments replaced by the paths of the identity.
pub(crate) fn with_certificate(
    contender: Contender,
    identity: Option<&Identity>,
) -> Result<Contender, String> {
    if !contender.serves_tls() {
        return Ok(contender);
    }
    let identity = identity.ok_or("no certificate for TLS (configure the machine with an identity)")?;
    let (certificate, key) = (identity.certificate(), identity.key());
    let expand = |word: &String| {
        word.replace(CERTIFICATE, &certificate.to_string_lossy()).replace(KEY, &key.to_string_lossy())
    };
    Ok(Contender { arguments: contender.arguments.iter().map(expand).collect(), ..contender })
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    let file_result = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    file_result
        .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
        .map_err(|error| with_path(file, &error))
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error} (set TMPDIR to another directory)", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
