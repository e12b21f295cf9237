//! HTTP part of the lab's load generator: sends requests and verifies that the responses contain the bodies of the
//! lab's site.

use std::path::Path;
use std::time::Duration;

use anello_lab::Cell;
use anello_lab::site::Target;
use anello_lab::tls::{Cipher, SERVER_NAME};
use anello_load::check::http::Server;
use anello_load::tls::Trust;
use anello_load::{LoadConfig, Protocol, Tls, TlsOptions};

/// Rate at which a slow machine receives and verifies bytes. The stall timeout is long enough to transfer all pending
/// responses at this rate.
const SLOW_BYTES_PER_SECOND: f64 = 100e6;

/// Returns the load configuration of a cell, without its request rate. With `reconnect`, each request uses a new
/// connection. `timeout` limits the time to open all connections; the limit for each request is `timeout` plus the time
/// to transfer all pending responses.
pub fn load(
    server: Server,
    cell: &Cell,
    target: Target,
    pipelining: usize,
    reconnect: bool,
    timeout: Duration,
) -> LoadConfig {
    let pending_bytes = (cell.connections.saturating_mul(pipelining) as f64) * target.bytes() as f64;
    let mut load = LoadConfig {
        connections: cell.connections,
        verify: true,
        connect_timeout: timeout,
        stall_timeout: timeout + Duration::from_secs_f64(pending_bytes / SLOW_BYTES_PER_SECOND),
        ..LoadConfig::http(server.address, SERVER_NAME, &target.path())
    };
    if let Protocol::Http(http) = &mut load.protocol {
        http.expected_body = Some(target.body().into());
        if let Some(body) = target.request_body() {
            (http.method, http.body) = ("POST".to_owned(), body.into());
        }
        (http.pipeline_depth, http.keep_alive) = (pipelining, !reconnect);
        http.tls = server.tls;
    }
    load
}

/// Returns a TLS configuration that trusts only this certificate and offers only the given cipher suite, or all suites
/// if none is given.
pub fn tls(certificate: &Path, cipher: Option<Cipher>) -> Result<Tls, String> {
    let options = TlsOptions {
        // Handshakes use more CPU time on the client than on the server. Comparing certificates costs less than
        // verifying them.
        trust: Trust::Certificate(certificate.to_owned()),
        cipher: cipher.map(|cipher| cipher.suite().to_owned()),
        // One server must not benefit from another server's sessions.
        session_resumption: false,
    };
    Tls::new(SERVER_NAME, options).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use anello_lab::tls::Identity;

    use super::*;

    #[test]
    fn tls_offers_only_cipher_of_cell_and_trusts_one_certificate() {
        let identity = Identity::make().unwrap();
        let tls = |cipher| super::tls(&identity.certificate(), cipher).unwrap().options().clone();
        let options = tls(Some(Cipher::Aes256Gcm));
        assert_eq!(options.cipher.as_deref(), Some("TLS13_AES_256_GCM_SHA384"));
        assert_eq!(options.trust, Trust::Certificate(identity.certificate()));
        assert!(!options.session_resumption);
        assert_eq!(tls(None).cipher, None);
        assert!(super::tls(&identity.key(), None).unwrap_err().contains("contains no certificates"));
    }

    #[test]
    fn load_follows_cell_and_timeout_grows_with_responses() {
        let server = Server::from(SocketAddr::from(([127, 0, 0, 1], 80)));
        let second = Duration::from_secs(1);
        let load = |target, pipelining: usize, reconnect: bool, connections| {
            let cell = Cell::http(target, connections);
            super::load(server.clone(), &cell, target, pipelining, reconnect, second)
        };
        let http = |load: &LoadConfig| match &load.protocol {
            Protocol::Http(http) => http.clone(),
            other => panic!("{other:?}"),
        };
        let small = load(Target::Page, 16, false, 50);
        assert!(small.validate().is_ok() && small.verify && small.connections == 50);
        assert_eq!((http(&small).pipeline_depth, http(&small).keep_alive), (16, true));
        assert_eq!(http(&small).paths, ["/page.html"]);
        assert_eq!(http(&small).expected_body.unwrap().len(), 6144);
        assert_eq!((http(&small).method.as_str(), http(&small).body.len()), ("GET", 0));
        let echo = load(Target::Echo, 1, false, 50);
        assert!(echo.validate().is_ok());
        assert_eq!((http(&echo).method.as_str(), http(&echo).body.len()), ("POST", 1024));
        assert_eq!(http(&echo).expected_body.unwrap(), http(&echo).body);
        let reconnecting = load(Target::Fixed, 1, true, 50);
        assert!(reconnecting.validate().is_ok() && !http(&reconnecting).keep_alive);
        // 3 GiB at 100 MB/s.
        assert_eq!(load(Target::Huge, 1, false, 300).stall_timeout.as_secs(), 1 + 31);
        assert_eq!(load(Target::Huge, 1, false, 300).connect_timeout, second);
    }
}
