//! Certificates of servers: whether one is right.
//!
//! That the server has the key of the certificate that it shows is verified in every handshake, whatever is trusted.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

/// What is taken.
#[derive(Debug)]
pub(super) enum TrustPolicy {
    /// Every certificate.
    AcceptAny,
    /// This one alone.
    Certificate(CertificateDer<'static>),
    /// What one of these has signed, and these themselves.
    CaFile {
        /// Verifies what they have signed.
        verifier: Arc<WebPkiServerVerifier>,
        certificates: Vec<CertificateDer<'static>>,
    },
}

/// Takes certificates, or refuses them.
#[derive(Debug)]
pub(super) struct Verifier {
    trust_policy: TrustPolicy,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub fn new(trust_policy: TrustPolicy, provider: &CryptoProvider) -> Self {
        Self { trust_policy, algorithms: provider.signature_verification_algorithms }
    }
}

/// Whether a certificate was refused for nothing but that it is an authority's and shown as a server's own. Most that are
/// signed by themselves are such: `openssl req -x509` makes no others. When it is valid has been looked at by then.
///
/// webpki's own error is at hand only by its name. If that changes, this is false, and what was refused stays refused.
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
            TrustPolicy::AcceptAny => Ok(ServerCertVerified::assertion()),
            TrustPolicy::Certificate(expected) if expected == certificate => {
                Ok(ServerCertVerified::assertion())
            }
            TrustPolicy::Certificate(_) => Err(CertificateError::ApplicationVerificationFailure.into()),
            TrustPolicy::CaFile { verifier, certificates } => {
                match verifier.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
                    // Nobody has to vouch for what the user has named; its name is all that was not yet looked at.
                    Err(Error::InvalidCertificate(error))
                        if is_ca_used_as_end_entity(&error)
                            && certificates.iter().any(|trusted| trusted == certificate) =>
                    {
                        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                        Ok(ServerCertVerified::assertion())
                    }
                    verified => verified,
                }
            }
        }
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
