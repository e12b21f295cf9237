//! TLS handshake outcomes and their counts.

use rustls::{ClientConnection, HandshakeKind, ProtocolVersion};
use serde::{Deserialize, Serialize};

/// A handshake outcome, and the number of handshakes with this outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeSummary {
    /// `TLS 1.3` or `TLS 1.2`.
    pub version: String,
    /// Name of the cipher suite, as returned by [`cipher_suite_names`](crate::model::tls::cipher_suite_names).
    pub cipher_suite: String,
    /// Key exchange group, such as `X25519`. `None` if the session was resumed without a key exchange.
    pub key_exchange: Option<String>,
    /// Whether a session was resumed.
    pub resumed: bool,
    /// Number of handshakes.
    pub count: u64,
}

impl HandshakeSummary {
    pub(crate) fn of(tls: &ClientConnection) -> Self {
        const UNKNOWN: &str = "unknown";
        let version = match tls.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLS 1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
            _ => UNKNOWN,
        };
        let suite = tls.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        let group = tls.negotiated_key_exchange_group();
        Self {
            version: version.to_owned(),
            cipher_suite: suite.unwrap_or(UNKNOWN).to_owned(),
            key_exchange: group.map(|group| group.name().as_str().unwrap_or(UNKNOWN).to_owned()),
            resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
            count: 1,
        }
    }

    /// Describes the outcome, for example `TLS 1.3, TLS13_AES_128_GCM_SHA256, X25519`.
    pub fn in_words(&self) -> String {
        let mut text = format!("{}, {}", self.version, self.cipher_suite);
        if let Some(group) = &self.key_exchange {
            text += &format!(", {group}");
        }
        if self.resumed {
            text += ", resumed";
        }
        text
    }

    /// Adds the count of `other` to the entry of `all` with the same outcome. A linear search is sufficient because a
    /// load on one server has few distinct outcomes.
    pub fn add(all: &mut Vec<Self>, other: Self) {
        match all.iter_mut().find(|known| known.outcome() == other.outcome()) {
            Some(known) => known.count += other.count,
            None => all.push(other),
        }
    }

    fn outcome(&self) -> (&str, &str, Option<&str>, bool) {
        (&self.version, &self.cipher_suite, self.key_exchange.as_deref(), self.resumed)
    }
}
