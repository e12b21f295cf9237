//! usage: tokio ADDRESS [CERTIFICATE KEY]

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(&arguments[1]).await?;
        let acceptor = match &arguments[..] {
            [_, _, certificate, key] => {
                let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let mut config = ServerConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()?
                    .with_no_client_auth()
                    .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
                config.alpn_protocols = vec![b"h2".to_vec()];
                Some(TlsAcceptor::from(Arc::new(config)))
            }
            _ => None,
        };
        let large = Bytes::from(vec![b'x'; 65_536]);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (acceptor, large) = (acceptor.clone(), large.clone());
            tokio::spawn(async move {
                match acceptor {
                    None => serve(stream, large).await,
                    Some(acceptor) => match acceptor.accept(stream).await {
                        Ok(stream) => serve(stream, large).await,
                        Err(error) => eprintln!("{error}"),
                    },
                }
            });
        }
    })
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, large: Bytes) {
    let respond = service_fn(move |request: Request<Incoming>| {
        let body = match request.uri().path() {
            "/large" => large.clone(),
            _ => Bytes::from_static(b"Hello, World!"),
        };
        let mut response = Response::new(Full::new(body));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        async { Ok::<_, Infallible>(response) }
    });
    let builder = http2::Builder::new(TokioExecutor::new());
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), respond).await {
        eprintln!("{error}");
    }
}
