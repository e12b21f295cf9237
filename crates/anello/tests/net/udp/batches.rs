//! Batches, and segmentation offload.

use super::*;

#[test]
fn batches_preserve_order_and_contents() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let server = UdpSocket::bind(ANY_PORT).unwrap();
            server.set_recv_buffer_size(1 << 20).unwrap();
            let client = bind();
            let payloads: Vec<_> = (0..100).map(|n| pattern(n, 1 + 7 * n as usize)).collect();
            let datagrams: Vec<_> =
                payloads.iter().map(|payload| OutgoingDatagram::new(payload, address(&server))).collect();
            send_all(&client, &datagrams).await;
            let mut batch = RecvBatch::new(RecvBatch::MAX_DATAGRAMS, 1500);
            let mut received = Vec::new();
            while received.len() < payloads.len() {
                let count = server.recv_batch(&mut batch).await.unwrap();
                assert!(count == batch.len() && count > 0);
                let replies: Vec<_> =
                    batch.iter().map(|datagram| datagram.reply(datagram.payload())).collect();
                send_all(&server, &replies).await;
                assert!(batch.iter().all(|datagram| datagram.source() == address(&client)));
                received.extend(batch.iter().map(|datagram| datagram.payload().to_vec()));
            }
            assert_eq!(received, payloads);
            for payload in &payloads {
                assert_eq!(receive(&client).await.0, *payload);
            }
            assert_would_block(server.try_recv_batch(&mut batch));
            assert!(batch.is_empty());
            assert_eq!(client.send_batch(&[]).await.unwrap(), 0);
        });
    });
}

#[test]
fn batch_sizes_are_clamped() {
    let batch = RecvBatch::new(0, 0);
    assert_eq!((batch.max_datagrams(), batch.datagram_bytes()), (1, 1));
    let batch = RecvBatch::new(usize::MAX, 1);
    assert_eq!(batch.max_datagrams(), RecvBatch::MAX_DATAGRAMS);
    assert!(batch.is_empty() && batch.iter().next().is_none());
}

/// Sends a payload in segments, and returns the datagrams that arrive, and the number of messages that contain them.
async fn transfer_segments(
    server: &UdpSocket,
    client: &UdpSocket,
    payload: &[u8],
    segment: u16,
) -> (Vec<Vec<u8>>, usize) {
    let datagram = OutgoingDatagram::new(payload, address(server)).with_segment_size(segment);
    let expected = payload.len().div_ceil(segment.into());
    let (mut received, mut messages) = (Vec::new(), 0);
    let receive_all = async {
        while received.len() < expected {
            let (bytes, info) = receive(server).await;
            received.extend(info.segments(&bytes).map(<[u8]>::to_vec));
            messages += 1;
        }
    };
    join(client.send_message(&datagram), receive_all).await.0.unwrap();
    (received, messages)
}

#[test]
fn segmented_payload_arrives_as_datagrams() {
    on_every_driver_and_sim(|setup| {
        for gro in [false, true] {
            setup.run(async {
                let server = UdpSocket::bind(ANY_PORT).unwrap();
                server.set_recv_buffer_size(1 << 20).unwrap();
                server.set_gro(gro).unwrap();
                let client = bind();
                // The kernel does not split the last payload, because there are too many segments.
                for (bytes, segment) in [(3_500, 1_000), (64_000, 1_000), (500, 1_000), (40_000, 100)] {
                    let payload = pattern(bytes, bytes as usize);
                    let (received, messages) = transfer_segments(&server, &client, &payload, segment).await;
                    let expected: Vec<_> = payload.chunks(segment.into()).map(<[u8]>::to_vec).collect();
                    assert_eq!(received, expected, "{bytes} bytes in segments of {segment}");
                    if !gro || matches!(setup.kind, anello::DriverKind::Sim(_)) {
                        assert_eq!(messages, expected.len());
                    } else if bytes == 64_000 {
                        assert!(messages < expected.len(), "GRO merges segments on loopback");
                    }
                }
            });
        }
    });
}

#[test]
fn batch_with_segmented_payloads_arrives_in_order() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let server = UdpSocket::bind(ANY_PORT).unwrap();
            server.set_recv_buffer_size(1 << 20).unwrap();
            server.set_gro(true).unwrap();
            let client = bind();
            let payloads: Vec<_> = (0..6).map(|n| pattern(n, 3_000)).collect();
            let datagrams: Vec<_> = payloads
                .iter()
                .zip([0, 1_000, 100, 0, 999, 30])
                .map(|(payload, size)| {
                    OutgoingDatagram::new(payload, address(&server)).with_segment_size(size)
                })
                .collect();
            let sent: Vec<_> = payloads.iter().flatten().copied().collect();
            let mut received = Vec::new();
            let receive_all = async {
                while received.len() < sent.len() {
                    received.extend(receive(&server).await.0);
                }
            };
            join(send_all(&client, &datagrams), receive_all).await;
            assert_eq!(received, sent);
            // A failing datagram in the middle of a batch ends it. The next call returns the error.
            let too_long = vec![0; MAX_PAYLOAD + 1];
            let to = address(&server);
            let datagrams = [b"first" as &[u8], &too_long, b"third"].map(|it| OutgoingDatagram::new(it, to));
            let mut rest = &datagrams[..];
            let error = loop {
                match client.send_batch(rest).await {
                    Ok(sent) => rest = &rest[sent..],
                    Err(error) => break error,
                }
            };
            assert_eq!((error.raw_os_error(), rest.len()), (Some(libc::EMSGSIZE), 2));
        });
    });
}
