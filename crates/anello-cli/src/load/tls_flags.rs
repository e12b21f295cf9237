//! TLS flags of `anello load http`.

use std::io;
use std::path::PathBuf;

use anello_load::tls::{TlsRemedy, Trust};
use anello_load::{Tls, TlsOptions};

use super::url::Url;
use crate::common::error::invalid_input;

/// Options for https:// URLs.
#[derive(clap::Args)]
pub struct TlsFlags {
    /// https: PEM file with trusted CA certificates, or with the server's certificate itself; replaces the CA
    /// certificates that this system trusts.
    #[arg(long, value_name = "FILE", conflicts_with = "tls_insecure")]
    tls_ca: Option<PathBuf>,

    /// https: accept any certificate; the report contains a warning.
    #[arg(long)]
    tls_insecure: bool,

    /// https: offer only this cipher suite, such as TLS13_AES_128_GCM_SHA256, to compare servers with the same one. The
    /// suite also determines the TLS version.
    #[arg(long, value_name = "NAME")]
    tls_cipher: Option<String>,

    /// https: resume sessions, which shortens the handshakes of later connections; by default each connection makes a
    /// full handshake.
    #[arg(long)]
    tls_resume: bool,
}

impl TlsFlags {
    /// Returns the TLS configuration for a URL; `None` for http://, where TLS flags are an error.
    pub fn of(&self, url: &Url) -> io::Result<Option<Tls>> {
        if url.is_secure {
            let tls = Tls::new(url.server_name(), self.options());
            return tls.map(Some).map_err(|error| {
                let flags = remedy_flags(TlsRemedy::of(&error));
                io::Error::new(error.kind(), format!("{error}{flags}"))
            });
        }
        match self.options() == TlsOptions::default() {
            true => Ok(None),
            false => {
                Err(invalid_input("--tls- flags require an https:// URL (use https://, or remove the flags)"))
            }
        }
    }

    fn options(&self) -> TlsOptions {
        let trust = match (&self.tls_ca, self.tls_insecure) {
            (_, true) => Trust::AcceptAny,
            (Some(file), false) => Trust::CaFile(file.clone()),
            (None, false) => Trust::System,
        };
        TlsOptions { trust, cipher: self.tls_cipher.clone(), session_resumption: self.tls_resume }
    }
}

/// Returns the flags that can resolve a TLS error, to be appended to its message.
pub fn remedy_flags(remedy: Option<TlsRemedy>) -> &'static str {
    match remedy {
        Some(TlsRemedy::Cipher) => " (--tls-cipher)",
        Some(TlsRemedy::Trust) => " (--tls-ca, --tls-insecure)",
        None => "",
    }
}
