//! Outcomes of TLS handshakes, and their counts.

use rustls::{CipherSuite, ClientConnection, HandshakeKind, NamedGroup, ProtocolVersion};
use serde::{Deserialize, Serialize};

/// Outcome of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    version: Option<ProtocolVersion>,
    suite: Option<CipherSuite>,
    key_exchange: Option<NamedGroup>,
    resumed: bool,
}

impl Negotiated {
    /// Returns the outcome for a connection whose handshake is complete.
    pub fn of(tls: &ClientConnection) -> Self {
        Self {
            version: tls.protocol_version(),
            suite: tls.negotiated_cipher_suite().map(|suite| suite.suite()),
            key_exchange: tls.negotiated_key_exchange_group().map(|group| group.name()),
            resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
        }
    }
}

/// Outcome of handshakes, and the number of handshakes with this outcome.
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
    fn of(negotiated: Negotiated, count: u64) -> Self {
        const UNKNOWN: &str = "unknown";
        let version = match negotiated.version {
            Some(ProtocolVersion::TLSv1_3) => "TLS 1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
            _ => UNKNOWN,
        };
        let suite = negotiated.suite.and_then(|suite| suite.as_str()).unwrap_or(UNKNOWN);
        let group = negotiated.key_exchange.map(|group| group.as_str().unwrap_or(UNKNOWN).to_owned());
        Self {
            version: version.to_owned(),
            cipher_suite: suite.to_owned(),
            key_exchange: group,
            resumed: negotiated.resumed,
            count,
        }
    }

    /// Describes the outcome, for example `TLS 1.3, TLS13_AES_128_GCM_SHA256, X25519`.
    #[must_use]
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

    /// Adds the counts in `others` to `all`.
    pub(crate) fn add(all: &mut Vec<HandshakeSummary>, others: Vec<HandshakeSummary>) {
        for other in others {
            let has_same_outcome = |known: &&mut HandshakeSummary| {
                HandshakeSummary { count: other.count, ..(**known).clone() } == other
            };
            match all.iter_mut().find(has_same_outcome) {
                Some(known) => known.count += other.count,
                None => all.push(other),
            }
        }
    }
}

/// Handshake counts by outcome. A linear search suffices because one server and one load negotiate few outcomes.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandshakeCounts(Vec<(Negotiated, u64)>);

impl HandshakeCounts {
    pub fn count(&mut self, negotiated: Negotiated) {
        match self.0.iter_mut().find(|(known, _)| *known == negotiated) {
            Some((_, count)) => *count += 1,
            None => self.0.push((negotiated, 1)),
        }
    }

    pub fn handshakes(&self) -> Vec<HandshakeSummary> {
        self.0.iter().map(|&(negotiated, count)| HandshakeSummary::of(negotiated, count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Negotiated = Negotiated {
        version: Some(ProtocolVersion::TLSv1_3),
        suite: Some(CipherSuite::TLS13_AES_128_GCM_SHA256),
        key_exchange: Some(NamedGroup::X25519),
        resumed: false,
    };

    #[test]
    fn handshakes_are_counted_by_outcome() {
        let mut counters = HandshakeCounts::default();
        let resumed = Negotiated { resumed: true, ..FULL };
        [FULL, resumed, FULL].into_iter().for_each(|negotiated| counters.count(negotiated));
        let mut all = counters.handshakes();
        let descriptions: Vec<String> = all.iter().map(HandshakeSummary::in_words).collect();
        let expected = "TLS 1.3, TLS13_AES_128_GCM_SHA256, X25519";
        assert_eq!(descriptions, [expected.to_owned(), format!("{expected}, resumed")]);
        assert_eq!((all[0].count, all[1].count), (2, 1));
        let mut others = HandshakeCounts::default();
        others.count(resumed);
        others.count(Negotiated { version: Some(ProtocolVersion::TLSv1_2), key_exchange: None, ..FULL });
        HandshakeSummary::add(&mut all, others.handshakes());
        assert_eq!(all.iter().map(|kind| kind.count).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(all[2].in_words(), "TLS 1.2, TLS13_AES_128_GCM_SHA256");
    }
}
