//! Publishes to an MQTT broker and receives from it: rumqttc.
//!
//! Usage: `mqtt HOST PORT`
//!
//! Subscribes to a topic, publishes three messages with each quality of service, and prints what arrives.

use std::error::Error;
use std::time::Duration;

use anello::net::TcpStream;
use anello::sync::mpsc;
use anello_ecosystem::mqtt::connect;
use rumqttc::{Event, MqttOptions, Outgoing, Packet, QoS};

fn main() -> Result<(), Box<dyn Error>> {
    anello::Runtime::new()?.block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let host = arguments.next().ok_or("missing argument: HOST")?;
    let port = arguments.next().ok_or("missing argument: PORT")?.parse()?;
    let mut options = MqttOptions::new("anello", host, port);
    options.set_keep_alive(Duration::from_secs(30));
    let stream = TcpStream::connect(options.broker_address()).await?;
    let (client, mut events) = connect(&options, stream, 10).await?;
    let (sender, mut messages) = mpsc::unbounded_channel();
    let running = anello::spawn(async move {
        loop {
            match events.poll().await? {
                Event::Incoming(Packet::SubAck(_)) => drop(sender.send("subscribed".to_owned())),
                Event::Incoming(Packet::Publish(message)) => {
                    drop(sender.send(format!("received {}", String::from_utf8_lossy(&message.payload))));
                }
                Event::Outgoing(Outgoing::Disconnect) => return Ok::<_, rumqttc::ConnectionError>(()),
                _ => {}
            }
        }
    });

    client.subscribe("news/+", QoS::ExactlyOnce).await?;
    println!("{}", messages.recv().await.ok_or("the connection is closed")?);
    for quality in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for number in 0..3 {
            client.publish("news/it", quality, false, format!("{quality:?} {number}")).await?;
            println!("{}", messages.recv().await.ok_or("the connection is closed")?);
        }
    }
    client.disconnect().await?;
    running.await??;
    println!("disconnected");
    Ok(())
}
