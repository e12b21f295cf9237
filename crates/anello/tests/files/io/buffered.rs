//! Reading by line.

use std::io::ErrorKind;

use anello::io::{BufReader, copy, duplex};
use bytes::Bytes;

use crate::common::*;

#[test]
fn lines_are_independent_of_buffer_boundaries() {
    on_every_driver_and_sim(|setup| {
        let mut random = Rng::with_seed(6);
        let lines: Vec<String> =
            (0..200).map(|number| "x".repeat(random.usize(..300)) + &number.to_string()).collect();
        let mut text = String::new();
        for line in &lines {
            text.push_str(line);
            text.push_str(if random.bool() { "\r\n" } else { "\n" });
        }
        text.truncate(text.trim_end().len());
        setup.run(async {
            let (mut near, far) = pair().await.unwrap();
            let sending = anello::spawn(async move {
                let mut rest = text.as_bytes();
                while !rest.is_empty() {
                    let (part, others) = rest.split_at(random.usize(1..=rest.len().min(1000)));
                    near.write_all(part).await.unwrap();
                    rest = others;
                    if random.bool() {
                        anello::yield_now().await;
                    }
                }
            });
            let mut reader = BufReader::new(far).lines();
            for line in lines {
                assert_eq!(reader.next_line().await.unwrap(), Some(line));
            }
            assert_eq!(reader.next_line().await.unwrap(), None);
            assert_eq!(reader.next_line().await.unwrap(), None);
            sending.await.unwrap();
        });
    });
}

#[test]
fn line_in_one_buffer_is_not_copied_and_rest_is_received() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, mut server) = duplex(1000);
            let bytes = Bytes::from_static(b"CONNECT\nHost\n\nbody");
            server.send(bytes.clone()).await.unwrap();
            let mut reader = BufReader::new(client);
            assert_eq!(reader.fill_buf().await.unwrap().as_ptr(), bytes.as_ptr());
            let mut head = Vec::new();
            while reader.read_until(b'\n', &mut head).await.unwrap() > 1 {}
            assert_eq!(head, b"CONNECT\nHost\n\n");
            assert_eq!(reader.buffer(), b"body");
            assert_eq!(reader.read(&mut [0; 2]).await.unwrap(), 2);
            assert_eq!(reader.buffer(), b"dy");
            let mut rest = [0; 5];
            server.send("more").await.unwrap();
            reader.read_exact(&mut rest).await.unwrap();
            assert_eq!(&rest, b"dymor");
            // Bytes in the buffer are received before later ones.
            server.send("!").await.unwrap();
            server.shutdown().await.unwrap();
            let (mut output, mut writer) = duplex(1000);
            assert_eq!(copy(&mut reader, &mut writer).await.unwrap(), 2);
            assert_eq!(output.recv().await.unwrap().as_deref(), Some(&b"e"[..]));
            assert_eq!(output.recv().await.unwrap().as_deref(), Some(&b"!"[..]));
            client = reader.into_inner();
            drop(client);
        });
    });
}

#[test]
fn long_line_is_refused_before_it_is_collected() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut reader, mut writer) = duplex(usize::MAX);
            writer.send(vec![b'x'; 10]).await.unwrap();
            writer.send("\n").await.unwrap();
            writer.send(vec![b'y'; 10]).await.unwrap();
            writer.send("y\n").await.unwrap();
            let mut lines = BufReader::new(&mut reader).max_line_bytes(10).lines();
            assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("xxxxxxxxxx"));
            for _ in 0..2 {
                let error = lines.next_line().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData);
                assert!(error.to_string().contains("max_line_bytes"), "{error}");
            }
            // The bytes are still there.
            let mut rest = lines.into_inner().max_line_bytes(11);
            let mut line = String::new();
            assert_eq!(rest.read_line(&mut line).await.unwrap(), 12);
            assert_eq!(line, "yyyyyyyyyyy\n");
            // Without a delimiter, the line is rejected as soon as it is too long.
            writer.send(vec![b'z'; 100]).await.unwrap();
            assert!(rest.read_until(b'\n', &mut Vec::new()).await.is_err());
            rest.consume(90);
            assert_eq!(rest.buffer(), [b'z'; 10]);
        });
    });
}

#[test]
fn line_that_is_not_text_is_consumed() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (reader, mut writer) = duplex(100);
            writer.send(&b"\xff\nnext\n"[..]).await.unwrap();
            let mut lines = BufReader::new(reader).lines();
            assert_eq!(lines.next_line().await.unwrap_err().kind(), ErrorKind::InvalidData);
            assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("next"));
        });
    });
}

#[test]
fn fault_10_dropped_line_future_loses_no_bytes() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut near, far) = pair().await.unwrap();
            let mut random = Rng::with_seed(7);
            let mut reader = BufReader::new(far);
            for number in 0..100 {
                let text = format!("{} line {number}\n", "-".repeat(random.usize(..50)));
                let (start, end) = text.split_at(random.usize(1..text.len()));
                near.write_all(start.as_bytes()).await.unwrap();
                near.flush().await.unwrap();
                let mut line = String::new();
                while poll_at_most(1, reader.read_line(&mut line)).await.is_none() {
                    assert!(line.is_empty());
                    if random.usize(..3) == 0 {
                        break;
                    }
                    anello::yield_now().await;
                }
                near.write_all(end.as_bytes()).await.unwrap();
                if random.bool() {
                    // Bytes of the incomplete line can also be read in another way.
                    let count = reader.fill_buf().await.unwrap().len().min(3);
                    let mut first = vec![0; count];
                    reader.read_exact(&mut first).await.unwrap();
                    line = String::from_utf8(first).unwrap();
                    if line.ends_with('\n') {
                        assert_eq!(line, text);
                        continue;
                    }
                }
                reader.read_line(&mut line).await.unwrap();
                assert_eq!(line, text);
            }
        });
    });
}
