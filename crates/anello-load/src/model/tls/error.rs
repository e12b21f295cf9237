//! TLS errors, with messages that suggest a remedy.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use super::verifier::is_ca_used_as_end_entity;

/// TLS protocol error, as opposed to an error on the underlying transport.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct TlsError {
    text: String,
    remedy: Option<TlsRemedy>,
}

impl TlsError {
    pub fn io_error(kind: io::ErrorKind, text: impl Into<String>, remedy: Option<TlsRemedy>) -> io::Error {
        io::Error::new(kind, Self { text: text.into(), remedy })
    }

    /// Converts a rustls error to an I/O error of kind `InvalidData`.
    pub fn from_rustls(error: &Error) -> io::Error {
        let (text, remedy) = match advice(error) {
            Some((advice, remedy)) => (format!("TLS: {error}: {advice}"), remedy),
            None => (format!("TLS: {error}"), None),
        };
        Self::io_error(io::ErrorKind::InvalidData, text, remedy)
    }

    /// Returns the TLS error in `error`, if any.
    pub fn find(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// A TLS option that can resolve an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsRemedy {
    /// Another cipher suite: [`TlsOptions::cipher`](super::TlsOptions::cipher).
    Cipher,
    /// Another policy for certificates: [`TlsOptions::trust`](super::TlsOptions::trust).
    Trust,
}

impl TlsRemedy {
    /// Returns the option that the message of a TLS error recommends changing.
    pub fn of(error: &io::Error) -> Option<Self> {
        TlsError::find(error)?.remedy
    }
}

/// Returns a description of the cause or of a remedy, and the option to change.
fn advice(error: &Error) -> Option<(&'static str, Option<TlsRemedy>)> {
    Some(match error {
        Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
            ("the server certificate is not the expected one", None)
        }
        Error::InvalidCertificate(error) => (certificate_advice(error), Some(TlsRemedy::Trust)),
        Error::InvalidMessage(_) => {
            ("the response is not TLS (if this is a plain HTTP port, use http://)", None)
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::NoApplicationProtocol => {
            ("the server does not support HTTP/1.1 on this port", None)
        }
        Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion)
        | Error::PeerIncompatible(_) => (
            "no TLS version or cipher suite in common with the server (offer another suite or all suites)",
            Some(TlsRemedy::Cipher),
        ),
        Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            ("the server does not recognize this name (use a name that its certificate is valid for)", None)
        }
        _ => return None,
    })
}

fn certificate_advice(error: &CertificateError) -> &'static str {
    match error {
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
        error if is_ca_used_as_end_entity(error) => {
            "the server uses a CA certificate as its server certificate, which is common with self-signed certificates \
             (trust this certificate itself, or disable verification)"
        }
        _ => "invalid server certificate (to accept it anyway, disable verification)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_contains_option_to_change() {
        for (error, option) in [
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), Some(TlsRemedy::Trust)),
            (Error::InvalidCertificate(CertificateError::NotValidForName), Some(TlsRemedy::Trust)),
            (Error::InvalidCertificate(CertificateError::Expired), Some(TlsRemedy::Trust)),
            (Error::InvalidCertificate(CertificateError::Revoked), Some(TlsRemedy::Trust)),
            (Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure), None),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), Some(TlsRemedy::Cipher)),
            (Error::NoApplicationProtocol, None),
        ] {
            assert_eq!(TlsRemedy::of(&TlsError::from_rustls(&error)), option, "{error}");
        }
    }
}
