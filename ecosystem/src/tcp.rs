//! A connector for HTTP clients.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use anello::net::TcpStream;
use http::Uri;
use send_wrapper::SendWrapper;
use tower_service::Service;

use crate::local::Local;

/// Opens TCP connections to the host of a URL, for `hyper-util`, `hyper-rustls` and tonic.
///
/// The port defaults to that of the scheme.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnector;

impl Service<Uri> for TcpConnector {
    type Response = Local<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let default_port = if url.scheme_str() == Some("https") { 443 } else { 80 };
        let port = url.port_u16().unwrap_or(default_port);
        // Brackets are part of an IPv6 address in a URL, but not of the address.
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        Box::pin(SendWrapper::new(async move {
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            Ok(Local::new(stream))
        }))
    }
}
