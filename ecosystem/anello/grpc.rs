//! A gRPC server and client with deadlines and cancellation: tonic.
//!
//! Usage: `grpc server ADDRESS` or `grpc client ADDRESS`
//!
//! The service is in `proto/greeter.proto`. The server prints a line when a call is cancelled.

use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use anello::net::TcpListener;
use anello::time::timeout;
use anello_ecosystem::rpc::{self, Channel};
use futures_util::stream::{self, Stream};
use tonic::{Request, Response, Status};

use greeter::greeter_client::GreeterClient;
use greeter::greeter_server::{Greeter, GreeterServer};
use greeter::{Greeting, Limit, Name};

#[allow(missing_docs, reason = "generated code")]
mod greeter {
    tonic::include_proto!("greeter");
}

/// Reports that its owner was dropped.
struct Report;

impl Drop for Report {
    fn drop(&mut self) {
        println!("cancelled");
    }
}

struct Service;

#[tonic::async_trait]
impl Greeter for Service {
    async fn greet(&self, request: Request<Name>) -> Result<Response<Greeting>, Status> {
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(Status::invalid_argument("the name is empty"));
        }
        Ok(Response::new(Greeting { text: format!("ciao, {name}") }))
    }

    type CountStream = Pin<Box<dyn Stream<Item = Result<Greeting, Status>> + Send>>;

    async fn count(&self, request: Request<Limit>) -> Result<Response<Self::CountStream>, Status> {
        let greetings =
            (1..=request.into_inner().limit).map(|number| Ok(Greeting { text: format!("ciao {number}") }));
        Ok(Response::new(Box::pin(stream::iter(greetings))))
    }

    async fn wait(&self, _request: Request<Name>) -> Result<Response<Greeting>, Status> {
        let _report = Report;
        std::future::pending().await
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    anello::Runtime::new()?.block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().ok_or("missing argument: server or client")?;
    let address = arguments.next().ok_or("missing argument: ADDRESS")?;
    if mode == "client" {
        return call(&address).await;
    }
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    rpc::serve(listener, GreeterServer::new(Service)).await;
    Ok(())
}

async fn call(address: &str) -> Result<(), Box<dyn Error>> {
    let mut client = GreeterClient::with_origin(Channel::new(), format!("http://{address}").parse()?);

    println!("{}", client.greet(Name { name: "Ada".to_owned() }).await?.into_inner().text);
    if let Err(status) = client.greet(Name::default()).await {
        println!("{:?} {}", status.code(), status.message());
    }
    let mut greetings = client.count(Limit { limit: 1000 }).await?.into_inner();
    let mut count = 0;
    while greetings.message().await?.is_some() {
        count += 1;
    }
    println!("{count} greetings");

    // The deadline is sent to the server.
    let mut request = Request::new(Name::default());
    request.set_timeout(Duration::from_millis(200));
    println!("{:?}", client.wait(request).await.map_err(|status| status.code()));
    // The client cancels the call.
    let cancelled = timeout(Duration::from_millis(200), client.wait(Name::default())).await;
    println!("cancelled {}", cancelled.is_err());
    println!("{}", client.greet(Name { name: "Bob".to_owned() }).await?.into_inner().text);
    Ok(())
}
