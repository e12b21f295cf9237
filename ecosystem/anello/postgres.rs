//! Queries, `COPY`, notifications and cancellation in PostgreSQL: tokio-postgres.
//!
//! Usage: `postgres ADDRESS`
//!
//! Connects as the user `postgres` and prints the results.

use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use anello::net::TcpStream;
use anello::sync::mpsc;
use anello::time::timeout;
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{SinkExt, TryStreamExt};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Config, NoTls};

fn main() -> Result<(), Box<dyn Error>> {
    anello::Runtime::new()?.block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("missing argument: ADDRESS")?;
    let mut config = Config::new();
    config.user("postgres").application_name("anello");
    let stream = TcpStream::connect(&address).await?;
    let (mut client, mut connection) = config.connect_raw(stream, NoTls).await?;
    let (sender, mut notifications) = mpsc::unbounded_channel();
    anello::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notification(notification)) => drop(sender.send(notification)),
                Ok(_) => {}
                Err(error) => eprintln!("connection failed: {error}"),
            }
        }
    })
    .detach();

    client.batch_execute("CREATE TEMPORARY TABLE cities (name TEXT, people BIGINT)").await?;
    let transaction = client.transaction().await?;
    let copied = transaction.copy_in("COPY cities FROM STDIN").await?;
    let mut copied = pin!(copied);
    for (name, people) in [("Milano", 1_371_000), ("Roma", 2_755_000), ("Torino", 841_000)] {
        copied.send(Bytes::from(format!("{name}\t{people}\n"))).await?;
    }
    println!("copied {}", copied.finish().await?);
    transaction.commit().await?;

    let rows = client.query_raw("SELECT name FROM cities WHERE people > $1", &[1_000_000_i64]).await?;
    let names: Vec<String> = rows.map_ok(|row| row.get(0)).try_collect().await?;
    println!("large {names:?}");

    // The queries are sent without waiting for the results of the earlier ones.
    let statement = client.prepare("SELECT $1::BIGINT * 2").await?;
    let numbers: Vec<i64> = (0..100).collect();
    let parameters: Vec<[&(dyn ToSql + Sync); 1]> = numbers.iter().map(|number| [number as _]).collect();
    let queries = parameters.iter().map(|parameters| client.query_one(&statement, parameters));
    let sum: i64 = try_join_all(queries).await?.iter().map(|row| row.get::<_, i64>(0)).sum();
    println!("sum {sum}");

    client.batch_execute("LISTEN news; NOTIFY news, 'ciao'").await?;
    let notification = notifications.recv().await.ok_or("the connection is closed")?;
    println!("notified {}", notification.payload());

    let mut slow = pin!(client.query_one("SELECT pg_sleep(60)", &[]));
    let result = loop {
        match timeout(Duration::from_millis(50), slow.as_mut()).await {
            Ok(result) => break result,
            // Has no effect if the server has not started the query yet.
            Err(_) => {
                client.cancel_token().cancel_query_raw(TcpStream::connect(&address).await?, NoTls).await?
            }
        }
    };
    println!("cancelled {:?}", result.err().and_then(|error| Some(error.code()?.code().to_owned())));
    println!("next {}", client.query_one("SELECT count(*) FROM cities", &[]).await?.get::<_, i64>(0));
    Ok(())
}
