//! What TLS fails by, in words that say what to do.

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use super::verifier::is_ca_used_as_end_entity;

/// A failure of TLS, not of what carries it.
#[derive(Debug)]
pub(crate) struct TlsError(String);

impl TlsError {
    /// As an error of I/O, which is what all others are.
    pub fn from_rustls(error: &Error) -> io::Error {
        let text = match remedy(error) {
            Some(remedy) => format!("TLS: {error}: {remedy}"),
            None => format!("TLS: {error}"),
        };
        io::Error::new(io::ErrorKind::InvalidData, Self(text))
    }

    /// The server has closed before the handshake was over.
    pub fn unexpected_eof() -> io::Error {
        let text = "TLS: the server closed the connection in the middle of the handshake: does it speak TLS at this port?";
        io::Error::new(io::ErrorKind::InvalidData, Self(text.to_owned()))
    }

    /// Whether an error is one of TLS.
    pub fn is_source_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

fn remedy(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::InvalidCertificate(error) => match error {
            // The latter where somebody else has the name of one who is trusted.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "nobody who is trusted has signed the server's certificate; trust who has, or verify nothing"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "ask by a name that the certificate is for, or verify nothing"
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                "renew the certificate, set the clock right, or verify nothing"
            }
            CertificateError::ApplicationVerificationFailure => {
                "this is not the certificate that was expected"
            }
            error if is_ca_used_as_end_entity(error) => {
                "the server shows an authority's certificate as its own, as those that are signed by themselves mostly are; \
                 trust this certificate itself, or verify nothing"
            }
            _ => "the certificate is not right; verify nothing if that does not matter",
        },
        Error::InvalidMessage(_) => {
            "what came is no TLS; if the server speaks plain HTTP at this port, write http://"
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::NoApplicationProtocol => {
            "the server does not speak HTTP/1.1 at this port"
        }
        Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion)
        | Error::PeerIncompatible(_) => {
            "server and load have no version or cipher suite in common; offer another suite, or all"
        }
        Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            "the server does not know this name; ask by the name that its certificate is for"
        }
        _ => return None,
    })
}

impl fmt::Display for TlsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}
