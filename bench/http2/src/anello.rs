//! usage: anello ADDRESS [CERTIFICATE KEY]

use std::error::Error;
use std::path::Path;

use anello::net::TcpListener;
use anello_http::server::{Http2Mode, TlsConfig};
use anello_http::{Request, Response, Server};
use bytes::Bytes;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    anello::Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(&arguments[1])?;
        let mut builder = Server::builder().configure(|options| options.http2 = Http2Mode::Cleartext);
        if let [_, _, certificate, key] = &arguments[..] {
            builder = builder.tls(TlsConfig::from_pem_files(Path::new(certificate), Path::new(key))?);
        }
        let large = Bytes::from(vec![b'x'; 65_536]);
        let handler = async move |request: Request| match request.path() {
            "/large" => Response::text(large.clone()),
            _ => Response::text("Hello, World!"),
        };
        Ok(builder.build().serve(listener, handler).await?)
    })
}
