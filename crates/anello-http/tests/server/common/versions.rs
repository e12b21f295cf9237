//! The versions of HTTP, for tests that run with each of them.

use std::net::SocketAddr;

use anello_http::ServerOptions;
use http::{HeaderName, HeaderValue};

use super::{Client, ClientResponse, http2};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http1,
    Http2,
}

/// The versions that are compiled in.
pub const VERSIONS: &[Version] =
    if cfg!(feature = "http2") { &[Version::Http1, Version::Http2] } else { &[Version::Http1] };

/// Adds HTTP/2 without TLS, if it is compiled in.
pub fn with_all_versions(options: ServerOptions) -> ServerOptions {
    #[cfg(feature = "http2")]
    let options = options.http2(anello_http::server::Http2Mode::Cleartext);
    options
}

/// A client connection with one of the versions.
pub enum VersionedClient {
    Http1(Client),
    Http2(http2::Client),
}

impl Version {
    pub async fn connect(self, address: SocketAddr) -> VersionedClient {
        match self {
            Self::Http1 => VersionedClient::Http1(Client::connect(address).await),
            Self::Http2 => VersionedClient::Http2(http2::Client::connect(address).await),
        }
    }

    /// Returns the bytes of a client that sends a single request, for `/`, and accepts a response of any length.
    pub fn whole_get(self) -> Vec<u8> {
        match self {
            Self::Http1 => b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(),
            Self::Http2 => http2::whole_get(),
        }
    }

    /// Reads the response to [`whole_get`](Self::whole_get). Returns the length of its body.
    pub async fn read_body_bytes(self, client: &mut Client) -> usize {
        if self == Self::Http1 {
            return client.response().await.expect("response").body.len();
        }
        let mut body_bytes = 0;
        loop {
            let head = client.read_exact(9).await;
            let length = client.read_exact(usize::from(head[1]) << 8 | usize::from(head[2])).await.len();
            assert!(matches!(head[3], 0 | 1 | 4 | 6 | 8), "frame {head:?}");
            if head[3] == 0 {
                body_bytes += length;
                if head[4] & 1 == 1 {
                    return body_bytes;
                }
            }
        }
    }
}

impl VersionedClient {
    pub async fn get(&mut self, path: &str) -> ClientResponse {
        self.get_with(path, &[]).await
    }

    /// Sends a GET request with these fields.
    pub async fn get_with(&mut self, path: &str, fields: &[(&'static str, &str)]) -> ClientResponse {
        match self {
            Self::Http1(client) => {
                let fields = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
                let fields = fields.collect::<String>();
                client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
                client.response().await.expect("response")
            }
            Self::Http2(client) => {
                let mut request = http2::request("GET", path);
                for (name, value) in fields {
                    let value = HeaderValue::from_str(value).expect("valid value");
                    request.headers_mut().append(HeaderName::from_static(name), value);
                }
                let response = client.send(request).await;
                let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
                let fields = response.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
                ClientResponse { status: response.status, fields: fields.collect(), body: response.body }
            }
        }
    }
}
