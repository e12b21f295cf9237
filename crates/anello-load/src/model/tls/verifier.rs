//! Verification of server certificates.
//!
//! Every handshake also verifies that the server has the private key of its certificate, regardless of the trust
//! policy.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

/// A [`Trust`](super::Trust) policy other than the system trust store, with its certificates loaded.
#[derive(Debug)]
pub(super) enum TrustPolicy {
    AcceptAny,
    Certificate(CertificateDer<'static>),
    /// `verifier` accepts the certificates that are signed by one of `certificates`.
    CaFile {
        verifier: Arc<WebPkiServerVerifier>,
        certificates: Vec<CertificateDer<'static>>,
    },
}

#[derive(Debug)]
pub(super) struct Verifier {
    pub trust_policy: TrustPolicy,
    pub algorithms: WebPkiSupportedAlgorithms,
}

/// Returns `true` if a certificate was rejected only because it is a CA certificate used as an end-entity certificate.
/// Most self-signed certificates are CA certificates, including all those created by `openssl req -x509`. The validity
/// period has already been checked when this error is reported.
///
/// The webpki error can be identified only by its name. If the name changes, the certificate is still rejected.
pub(super) fn is_ca_used_as_end_entity(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(OtherError(error)) if error.to_string() == "CaUsedAsEndEntity")
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.trust_policy {
            TrustPolicy::AcceptAny => {}
            TrustPolicy::Certificate(expected) if expected == certificate => {}
            TrustPolicy::Certificate(_) => {
                return Err(CertificateError::ApplicationVerificationFailure.into());
            }
            TrustPolicy::CaFile { verifier, certificates } => {
                match verifier.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
                    // A certificate listed by the user does not need an issuer. Only its name remains to be checked.
                    Err(Error::InvalidCertificate(error))
                        if is_ca_used_as_end_entity(&error) && certificates.contains(certificate) =>
                    {
                        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                    }
                    verified => return verified,
                }
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
