//! Requests a page over HTTPS with a pool of connections: hyper-util and hyper-rustls.
//!
//! Usage: `http_client URL CA_FILE`
//!
//! Requests the page three times in sequence, then four times at once, and prints each response.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use http_body_util::{BodyExt, Empty};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

type HttpsClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("missing argument: URL")?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(arguments.next().ok_or("missing argument: CA_FILE")?)?)?;
    let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_all_versions().build();
    let client: HttpsClient = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .build(connector);

    for _ in 0..3 {
        println!("{}", get(&client, &url).await?);
    }
    for response in try_join_all((0..4).map(|_| get(&client, &url))).await? {
        println!("{response}");
    }
    Ok(())
}

async fn get(client: &HttpsClient, url: &str) -> Result<String, Box<dyn Error>> {
    let response = timeout(Duration::from_secs(10), client.get(url.parse()?)).await??;
    let (version, status) = (response.version(), response.status());
    let body = response.into_body().collect().await?.to_bytes();
    Ok(format!("{version:?} {status} {}", String::from_utf8_lossy(&body)))
}
