//! TLS in the lab: which cipher suite, and with what a server shows who it is.
//!
//! All contenders have the same certificate, made for the run and trusted by nobody else. The load offers one cipher suite
//! alone, so that all servers use the same one; which is a matter of the cell.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::cell::Cell;
use crate::contender::Contender;

/// In the arguments of a contender that serves TLS: the file of its certificate, and that of its key, both PEM.
pub const CERTIFICATE: &str = "{certificate}";
/// See [`CERTIFICATE`].
pub const KEY: &str = "{key}";

/// What the certificate is for, and servers are asked by.
pub const SERVER_NAME: &str = "localhost";

/// What bodies are encrypted by, over TLS 1.3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Cipher {
    /// AES with keys of 128 bits.
    #[default]
    #[serde(rename = "aes-128-gcm")]
    Aes128Gcm,
    /// AES with keys of 256 bits, which is what OpenSSL would choose by itself.
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
}

impl Cipher {
    /// The cipher suite, by the name that rustls has for it.
    #[must_use]
    pub const fn suite(self) -> &'static str {
        match self {
            Cipher::Aes128Gcm => "TLS13_AES_128_GCM_SHA256",
            Cipher::Aes256Gcm => "TLS13_AES_256_GCM_SHA384",
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Cipher::Aes128Gcm => "AES-128-GCM",
            Cipher::Aes256Gcm => "AES-256-GCM",
        })
    }
}

/// A certificate that is signed by itself (ECDSA, P-256) and its key, in a folder that only this user may open. Dropping it
/// removes them.
#[derive(Debug)]
pub struct Identity {
    folder: TempDir,
}

impl Identity {
    /// Makes a key and its certificate for `localhost`, where temporary files go (`TMPDIR`, else `/tmp`).
    ///
    /// # Errors
    /// What could not be made or written, and where.
    pub fn make() -> io::Result<Identity> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(io::Error::other)?;
        let parameters = CertificateParams::new([SERVER_NAME.to_owned()]).map_err(io::Error::other)?;
        let certificate = parameters.self_signed(&key).map_err(io::Error::other)?;
        let parent = std::env::temp_dir();
        let folder = tempfile::Builder::new().prefix("anello-lab-tls-").tempdir_in(&parent);
        let identity = Identity { folder: folder.map_err(|error| named(&parent, &error))? };
        write(&identity.certificate(), &certificate.pem())?;
        write(&identity.key(), &key.serialize_pem())?;
        Ok(identity)
    }

    /// One if any of these cells is under TLS.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn for_cells(cells: &[Cell]) -> io::Result<Option<Identity>> {
        let is_needed = cells.iter().any(|cell| cell.workload.cipher().is_some());
        is_needed.then(Identity::make).transpose()
    }

    /// The file of the certificate (PEM).
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    /// The file of the key (PEM).
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }
}

/// The contender with the files of the identity in its arguments, where it asks for them.
pub(crate) fn with_certificate(
    contender: Contender,
    identity: Option<&Identity>,
) -> Result<Contender, String> {
    if !contender.serves_tls() {
        return Ok(contender);
    }
    let identity = identity.ok_or("has no certificate to serve TLS with: give the machine an identity")?;
    let (certificate, key) = (identity.certificate(), identity.key());
    let filled = |word: &String| {
        word.replace(CERTIFICATE, &certificate.to_string_lossy()).replace(KEY, &key.to_string_lossy())
    };
    Ok(Contender { arguments: contender.arguments.iter().map(filled).collect(), ..contender })
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    opened
        .and_then(|mut opened| io::Write::write_all(&mut opened, text.as_bytes()))
        .map_err(|error| named(file, &error))
}

fn named(what: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}; set TMPDIR to another folder", what.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::site::Target;

    #[test]
    fn an_identity_is_for_this_user_alone_and_is_removed() {
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
    fn there_is_one_where_a_cell_is_under_tls() {
        let plain = Cell::http(Target::Hello, 1);
        assert!(Identity::for_cells(&[plain, Cell::echo(1, 1)]).unwrap().is_none());
        let secure = Cell { workload: plain.workload.under(Cipher::Aes256Gcm), ..plain };
        assert!(Identity::for_cells(&[plain, secure]).unwrap().is_some());
    }

    #[test]
    fn who_asks_for_an_identity_gets_its_files() {
        let of = |words: &[&str]| Contender::new("a", Path::new("x"), words);
        let plain = of(&["--addr", "127.0.0.1:0"]);
        assert_eq!(with_certificate(plain.clone(), None), Ok(plain));
        let told = of(&["--pair={certificate}:{key}"]);
        assert!(with_certificate(told.clone(), None).unwrap_err().contains("no certificate"));
        let identity = Identity::make().unwrap();
        let pair = format!("--pair={}:{}", identity.certificate().display(), identity.key().display());
        assert_eq!(with_certificate(told, Some(&identity)).unwrap().arguments, [pair]);
    }

    #[test]
    fn ciphers_are_written_by_their_names() {
        for (cipher, name) in [(Cipher::Aes128Gcm, "aes-128-gcm"), (Cipher::Aes256Gcm, "aes-256-gcm")] {
            assert_eq!(serde_json::to_string(&cipher).unwrap(), format!("\"{name}\""));
            assert_eq!(cipher.to_string().to_lowercase(), name);
        }
    }
}
