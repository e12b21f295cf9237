//! The lab's load over HTTP: what cells ask for, and what servers are checked for, with the bodies of the lab's site.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anello_lab::Cell;
use anello_lab::site::{SupportedTargets, Target};
use anello_lab::tls::{Cipher, SERVER_NAME};
use anello_load::check::http::{Page, Server, complete_bytes, many_connections, stalled_reader};
use anello_load::tls::{HandshakeSummary, Trust};
use anello_load::{LoadConfig, Protocol, Tls, TlsOptions};

/// What requests name as their host.
const HOST: &str = SERVER_NAME;

/// What a slow machine takes in and compares in a second, bytes: what is owed when a slice ends may be much, and is waited
/// for as long as that takes.
const SLOW_BYTES_PER_SECOND: f64 = 100e6;

/// The load of a cell that asks for `target`, pipelined so deep, over connections that are kept or not; without its rate.
/// `timeout` is for opening all connections, and for a request beside what its answer and those of the others take.
pub fn load(
    server: Server,
    cell: &Cell,
    (target, pipelining, reconnect): (Target, usize, bool),
    timeout: Duration,
) -> LoadConfig {
    let owed_bytes = (cell.connections.saturating_mul(pipelining) as f64) * target.bytes() as f64;
    let mut load = LoadConfig {
        connections: cell.connections,
        verify: true,
        connect_timeout: timeout,
        stall_timeout: timeout + Duration::from_secs_f64(owed_bytes / SLOW_BYTES_PER_SECOND),
        ..LoadConfig::http(server.address, HOST, &target.path())
    };
    if let Protocol::Http(http) = &mut load.protocol {
        http.expected_body = Some(target.body().into());
        (http.pipeline_depth, http.keep_alive) = (pipelining, !reconnect);
        http.tls = server.tls;
    }
    load
}

/// TLS for servers that have this certificate, and no other; by one cipher, if one is asked for.
pub fn tls(certificate: &Path, cipher: Option<Cipher>) -> Result<Tls, String> {
    let options = TlsOptions {
        // Cheaper than to look for who has signed it, and the load has more to do in a handshake than servers have.
        trust: Trust::Certificate(certificate.to_owned()),
        cipher: cipher.map(|cipher| cipher.suite().to_owned()),
        session_resumption: false,
    };
    Tls::new(SERVER_NAME, options).map_err(|error| error.to_string())
}

/// What the handshakes of all sessions came to. Clones are one and the same.
#[derive(Clone, Debug, Default)]
pub struct HandshakeKinds(Rc<RefCell<BTreeSet<String>>>);

impl HandshakeKinds {
    /// Notes what these came to.
    pub fn add(&self, handshakes: &[HandshakeSummary]) {
        self.0.borrow_mut().extend(handshakes.iter().map(HandshakeSummary::in_words));
    }

    /// A sentence about them; none if there were none.
    pub fn note(&self) -> Option<String> {
        let kinds: Vec<String> = self.0.borrow().iter().cloned().collect();
        (!kinds.is_empty()).then(|| format!("HandshakeSummary of TLS came to: {}.", kinds.join("; ")))
    }
}

/// Checks that all answers of a server that has these come whole and right.
pub async fn check_complete_responses(
    server: Server,
    served: SupportedTargets,
    timeout: Duration,
) -> Result<Vec<String>, String> {
    let pages: Vec<Page> = served.targets().into_iter().map(|target| page(target, served)).collect();
    complete_bytes(server, &pages, timeout).await
}

/// Checks that a reader of the largest file who stalls costs the others nothing.
pub async fn check_stalled_download(
    server: Server,
    served: SupportedTargets,
    timeout: Duration,
) -> Result<Vec<String>, String> {
    let (large, small) = (page(Target::Huge, served), page(Target::Hello, served));
    stalled_reader(server, &large, &small, timeout).await
}

/// Checks that so many connections at once have their answers.
pub async fn check_many_requests(
    server: Server,
    served: SupportedTargets,
    connections: usize,
    timeout: Duration,
) -> Result<Vec<String>, String> {
    let smallest = served.targets().first().copied().unwrap_or(Target::Fixed);
    many_connections(server, connections, &page(smallest, served), timeout).await
}

/// What is asked for, and what the answer must be. Who has a handler for the fixed answer need not have one for HEAD.
fn page(target: Target, served: SupportedTargets) -> Page {
    let answers_head = !(target == Target::Fixed && served.fixed);
    Page { path: target.path(), body: target.body().into(), answers_head }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use anello_lab::tls::Identity;

    use super::*;

    #[test]
    fn tls_offers_the_cell_s_cipher_alone_and_takes_no_other_certificate() {
        let identity = Identity::make().unwrap();
        let tls = |cipher| super::tls(&identity.certificate(), cipher).unwrap().options().clone();
        let options = tls(Some(Cipher::Aes256Gcm));
        assert_eq!(options.cipher.as_deref(), Some("TLS13_AES_256_GCM_SHA384"));
        assert_eq!(
            (options.trust, options.session_resumption),
            (Trust::Certificate(identity.certificate()), false)
        );
        assert_eq!(tls(None).cipher, None);
        assert!(super::tls(&identity.key(), None).unwrap_err().contains("no certificates"));
    }

    #[test]
    fn handshakes_are_told_by_kind() {
        let kinds = HandshakeKinds::default();
        assert_eq!(kinds.note(), None);
        let kind = |suite: &str| HandshakeSummary {
            version: "TLS 1.3".to_owned(),
            cipher_suite: suite.to_owned(),
            key_exchange: Some("X25519".to_owned()),
            resumed: false,
            count: 7,
        };
        kinds.clone().add(&[kind("B"), kind("A")]);
        kinds.add(&[kind("A")]);
        let expected = "HandshakeSummary of TLS came to: TLS 1.3, A, X25519; TLS 1.3, B, X25519.";
        assert_eq!(kinds.note().as_deref(), Some(expected));
    }

    #[test]
    fn a_cell_asks_for_its_target_as_it_says_and_large_answers_are_waited_for() {
        let server = Server::from(SocketAddr::from(([127, 0, 0, 1], 80)));
        let second = Duration::from_secs(1);
        let load = |target, manner: (usize, bool), connections| {
            let cell = Cell::http(target, connections);
            super::load(server.clone(), &cell, (target, manner.0, manner.1), second)
        };
        let http = |load: &LoadConfig| match &load.protocol {
            Protocol::Http(http) => http.clone(),
            Protocol::Messages { .. } => panic!("messages"),
        };
        let small = load(Target::Page, (16, false), 50);
        assert!(small.validate().is_ok() && small.verify && small.connections == 50);
        assert_eq!((http(&small).pipeline_depth, http(&small).keep_alive), (16, true));
        assert_eq!(http(&small).paths, ["/page.html"]);
        assert_eq!(http(&small).expected_body.unwrap().len(), 6144);
        let each = load(Target::Fixed, (1, true), 50);
        assert!(each.validate().is_ok() && !http(&each).keep_alive);
        // 3 GiB at 100 MB/s.
        assert_eq!(load(Target::Huge, (1, false), 300).stall_timeout.as_secs(), 1 + 31);
        assert_eq!(load(Target::Huge, (1, false), 300).connect_timeout, second);
    }

    #[test]
    fn only_a_handler_may_refuse_a_head() {
        let heads = |files, fixed| {
            let served = SupportedTargets { files, fixed };
            served.targets().into_iter().map(|target| page(target, served).answers_head).collect::<Vec<_>>()
        };
        assert_eq!(heads(true, false), [true; 5]);
        assert_eq!(heads(true, true), [true, false, true, true, true]);
        assert_eq!(heads(false, true), [false]);
    }
}
