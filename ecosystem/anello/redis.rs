//! Commands, pipelines and subscriptions in Redis: the crate redis.
//!
//! Usage: `redis ADDRESS`
//!
//! Prints the results.

use std::error::Error;
use std::time::Duration;

use anello::net::TcpStream;
use anello::sync::mpsc;
use anello::time::timeout;
use anello_ecosystem::local::Local;
use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, Value, pipe};

fn main() -> Result<(), Box<dyn Error>> {
    anello::Runtime::new()?.block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("missing argument: ADDRESS")?;
    let (sender, mut pushed) = mpsc::unbounded_channel();
    let info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
    // The time limit of the crate needs the tokio runtime.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(sender);
    let stream = Local::new(TcpStream::connect(&address).await?);
    let (mut connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    anello::spawn(driver).detach();

    () = connection.set("city", "Milano").await?;
    println!("get {}", connection.get::<_, String>("city").await?);
    let (visits, length): (i64, i64) =
        pipe().atomic().incr("visits", 2).rpush("list", &["a", "b"]).query_async(&mut connection).await?;
    println!("transaction {visits} {length}");

    // The commands of all clones share the connection and are sent without waiting for the earlier replies.
    let commands = (0..100).map(|_| {
        let mut connection = connection.clone();
        async move { connection.incr::<_, _, i64>("count", 1).await }
    });
    println!("sum {}", try_join_all(commands).await?.iter().sum::<i64>());

    connection.subscribe("news").await?;
    let receivers: i64 = connection.publish("news", "ciao").await?;
    let payload = loop {
        let message = pushed.recv().await.ok_or("the connection is closed")?;
        if message.kind == redis::PushKind::Message {
            break message.data.into_iter().nth(1);
        }
    };
    println!("published to {receivers}: {:?}", payload.map(redis::from_redis_value::<String>).transpose()?);

    let missing = connection.blpop::<_, Value>("empty", 60.0);
    println!("timed out {}", timeout(Duration::from_millis(50), missing).await.is_err());
    Ok(())
}
