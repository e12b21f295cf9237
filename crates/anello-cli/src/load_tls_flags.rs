//! The flags of `anello load http` that are about TLS.

use std::io;
use std::path::PathBuf;

use anello_load::tls::Trust;
use anello_load::{Tls, TlsOptions};

use crate::load_url::Url;

/// How https:// is spoken.
#[derive(clap::Args)]
pub struct TlsFlags {
    /// https: the authorities that may have signed the server's certificate, or that certificate itself (PEM), instead of
    /// those that this system trusts.
    #[arg(long, value_name = "FILE", conflicts_with = "tls_insecure")]
    tls_ca: Option<PathBuf>,

    /// https: take any certificate; the report says so.
    #[arg(long)]
    tls_insecure: bool,

    /// https: offer this cipher suite alone, so that servers are compared by the same one, as in TLS13_AES_128_GCM_SHA256;
    /// that of another version of TLS decides upon the version, too.
    #[arg(long, value_name = "NAME")]
    tls_cipher: Option<String>,

    /// https: let sessions be taken up again, which saves later connections the greater part of the handshake. Without it
    /// each makes a full one.
    #[arg(long)]
    tls_resume: bool,
}

impl TlsFlags {
    /// TLS for this URL; none if that is plain.
    pub fn of(&self, url: &Url) -> io::Result<Option<Tls>> {
        if url.is_secure {
            let tls = Tls::new(url.server_name(), self.options());
            return tls
                .map(Some)
                .map_err(|error| io::Error::new(error.kind(), with_flags(error.to_string())));
        }
        match self.options() == TlsOptions::default() {
            true => Ok(None),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "flags that begin with --tls- are for TLS, and the URL is plain: write https://, or leave them out",
            )),
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

/// What TLS failed by, with the flags that are for it.
pub fn with_flags(text: String) -> String {
    let flags = if text.contains("cipher suite in common") {
        "--tls-cipher"
    } else if ["verify nothing", "trust this certificate"].iter().any(|remedy| text.contains(remedy)) {
        "--tls-ca, --tls-insecure"
    } else {
        return text;
    };
    format!("{text} ({flags})")
}
