//! TLS errors, with messages that suggest a remedy.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use super::verifier::is_ca_used_as_end_entity;

/// TLS protocol error, as opposed to an error on the underlying transport.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TlsError(String);

impl TlsError {
    /// Converts a rustls error to an I/O error of kind `InvalidData`.
    pub fn from_rustls(error: &Error) -> io::Error {
        let text = match remedy(error) {
            Some(remedy) => format!("TLS: {error}: {remedy}"),
            None => format!("TLS: {error}"),
        };
        io::Error::new(io::ErrorKind::InvalidData, Self(text))
    }

    /// Returns the error for a connection that the server closed before the handshake was complete.
    pub fn unexpected_eof() -> io::Error {
        let text =
            "TLS: the server closed the connection during the handshake (check that this is a TLS port)";
        io::Error::new(io::ErrorKind::InvalidData, Self(text.to_owned()))
    }

    /// Returns `true` if `error` contains a [`TlsError`].
    pub fn is_source_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// A TLS option that can resolve an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRemedy {
    /// Another cipher suite: [`TlsOptions::cipher`](super::TlsOptions::cipher).
    Cipher,
    /// Another policy for certificates: [`TlsOptions::trust`](super::TlsOptions::trust).
    Trust,
}

impl TlsRemedy {
    /// Returns the option that a TLS error message recommends changing.
    #[must_use]
    pub fn of(message: &str) -> Option<Self> {
        if message.contains(OFFER_OTHER_SUITE) {
            Some(Self::Cipher)
        } else {
            message.contains(DISABLE_VERIFICATION).then_some(Self::Trust)
        }
    }
}

/// Phrases in messages that recommend [`TlsRemedy::Cipher`] and [`TlsRemedy::Trust`].
const OFFER_OTHER_SUITE: &str = "offer another suite";
const DISABLE_VERIFICATION: &str = "disable verification";

/// Returns the cause of an error, or a remedy that refers to the load options.
fn remedy(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::InvalidCertificate(error) => match error {
            // `BadSignature`: the issuer has the name of a trusted CA, but a different key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "server certificate not signed by a trusted CA (specify its CA file, or disable verification)"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "use a name that the certificate is valid for, or disable verification"
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                "renew the certificate, correct the clock, or disable verification"
            }
            CertificateError::ApplicationVerificationFailure => {
                "the server certificate is not the expected one"
            }
            error if is_ca_used_as_end_entity(error) => {
                "the server uses a CA certificate as its own, as is usual for self-signed certificates \
                 (trust this certificate itself, or disable verification)"
            }
            _ => "invalid server certificate (to accept it anyway, disable verification)",
        },
        Error::InvalidMessage(_) => "the response is not TLS (if this is a plain HTTP port, use http://)",
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::NoApplicationProtocol => {
            "the server does not support HTTP/1.1 on this port"
        }
        Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion)
        | Error::PeerIncompatible(_) => {
            "no TLS version or cipher suite in common with the server (offer another suite or all suites)"
        }
        Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            "the server does not recognize this name (use a name that its certificate is valid for)"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_option_to_change() {
        for (error, option) in [
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), Some(TlsRemedy::Trust)),
            (Error::InvalidCertificate(CertificateError::NotValidForName), Some(TlsRemedy::Trust)),
            (Error::InvalidCertificate(CertificateError::Expired), Some(TlsRemedy::Trust)),
            (Error::InvalidCertificate(CertificateError::Revoked), Some(TlsRemedy::Trust)),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), Some(TlsRemedy::Cipher)),
            (Error::NoApplicationProtocol, None),
        ] {
            let message = TlsError::from_rustls(&error).to_string();
            assert_eq!(TlsRemedy::of(&message), option, "{message}");
        }
    }
}
