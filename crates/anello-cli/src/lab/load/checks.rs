//! Server checks.

use std::time::Duration;

use anello_lab::Check;
use anello_lab::site::{SupportedTargets, Target};
use anello_load::check::http::{self, Page, Server};
use anello_load::check::{complete_bytes, many_connections, stalled_reader};

/// Timeout of the checks, which open thousands of connections and transfer megabytes.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of the checks with TLS, where thousands of handshakes take seconds of CPU time on both sides.
const TLS_CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// Checks a server. Returns the problems found, or an error if the check itself fails.
pub async fn run(server: Server, check: Check) -> Result<Vec<String>, String> {
    let timeout = if server.tls.is_some() { TLS_CHECK_TIMEOUT } else { CHECK_TIMEOUT };
    match check {
        Check::CompleteBytes(None) => complete_bytes(server.address, timeout).await,
        Check::StalledReader(None) => stalled_reader(server.address, timeout).await,
        Check::ManyConnections(None, connections) => {
            many_connections(server.address, connections, timeout).await
        }
        Check::CompleteBytes(Some(served)) => {
            // The checks send only GET and HEAD. Responses to POST are compared under load.
            let targets = served.targets().into_iter().filter(|target| target.request_body().is_none());
            let pages: Vec<Page> = targets.map(|target| page(target, served)).collect();
            http::complete_bytes(server, &pages, timeout).await
        }
        Check::StalledReader(Some(served)) => {
            let (large, small) = (page(Target::Huge, served), page(Target::Hello, served));
            http::stalled_reader(server, &large, &small, timeout).await
        }
        Check::ManyConnections(Some(served), connections) => {
            let smallest = served.targets().first().copied().unwrap_or(Target::Fixed);
            http::many_connections(server, connections, &page(smallest, served), timeout).await
        }
        other => Err(format!("unsupported check: {other}")),
    }
}

/// Returns the request for a target. A handler does not have to support HEAD.
fn page(target: Target, served: SupportedTargets) -> Page {
    let answers_head = !(target.is_route() || target == Target::Fixed && served.fixed);
    Page { path: target.path(), body: target.body().into(), answers_head }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_optional_only_for_handlers() {
        let heads = |files, fixed| {
            let served = SupportedTargets { files, fixed, routes: false };
            served.targets().into_iter().map(|target| page(target, served).answers_head).collect::<Vec<_>>()
        };
        assert_eq!(heads(true, false), [true; 5]);
        assert_eq!(heads(true, true), [true, false, true, true, true]);
        assert_eq!(heads(false, true), [false]);
        let routes = SupportedTargets { files: false, fixed: false, routes: true };
        assert!(routes.targets().into_iter().all(|target| !page(target, routes).answers_head));
    }
}
