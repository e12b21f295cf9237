//! TLS cipher suites used in cells.

use serde::{Deserialize, Serialize};

/// Server name in the certificate and in the load generator's requests.
pub const SERVER_NAME: &str = "localhost";

/// Cipher for TLS 1.3 connections.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, strum::Display,
)]
pub enum Cipher {
    /// AES with 128-bit keys.
    #[default]
    #[serde(rename = "aes-128-gcm")]
    #[strum(to_string = "AES-128-GCM")]
    Aes128Gcm,
    /// AES with 256-bit keys, OpenSSL's default.
    #[serde(rename = "aes-256-gcm")]
    #[strum(to_string = "AES-256-GCM")]
    Aes256Gcm,
}

impl Cipher {
    /// Returns the cipher suite's name in rustls.
    pub const fn suite(self) -> &'static str {
        match self {
            Cipher::Aes128Gcm => "TLS13_AES_128_GCM_SHA256",
            Cipher::Aes256Gcm => "TLS13_AES_256_GCM_SHA384",
        }
    }
}
