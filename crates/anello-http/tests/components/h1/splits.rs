//! Tests for fault 31: the outcome of decoding must not depend on how the network splits the bytes. Also, no input
//! makes the decoder panic, exceed its buffer limits, or accept an ambiguous head.

use anello_http::h1::Limits;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::properties::h1_support::cases::CONNECTIONS;
use crate::properties::h1_support::{feed, feed_whole};
use crate::properties::request::assert_agrees;

/// Splits the input at these offsets, which must be sorted.
fn split_at<'a>(text: &'a [u8], offsets: &[usize]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    let mut start = 0;
    for &offset in offsets.iter().chain([&text.len()]) {
        parts.push(&text[start..offset]);
        start = offset;
    }
    parts
}

/// Generates limits that some of the generated inputs exceed.
fn tight_limits() -> impl Strategy<Value = Limits> {
    let head = (15usize..60, 30usize..160, 0usize..6);
    let body = (0u64..40, 0usize..8, 0usize..30, 0usize..3);
    (head, body, 1u64..4).prop_map(|(head, body, max_requests_per_connection)| Limits {
        max_request_line_bytes: head.0,
        max_head_bytes: head.1,
        max_fields: head.2,
        max_body_bytes: body.0,
        max_chunk_extension_bytes: body.1,
        max_trailer_bytes: body.2,
        max_trailer_fields: body.3,
        max_requests_per_connection,
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![Just(Limits::default()), tight_limits()]
}

/// Generates text that resembles requests, from fragments that are significant to the decoder.
fn request_fragments() -> impl Strategy<Value = Vec<u8>> {
    let fragment = select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /a?b HTTP/1.1\r\n",
        "PUT http://h/ HTTP/1.0\r\n",
        "GET / HTTP/1.1",
        "Host: h\r\n",
        "Host: h\r\n\r\n",
        "\r\n",
        "\r\n\r\n",
        "\r",
        "\n",
        " ",
        ":",
        "\t",
        "Content-Length: 3\r\n",
        "Content-Length: 0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\n\r\n",
        "Connection: close\r\n",
        "Expect: 100-continue\r\n",
        "abc",
        "3\r\nabc\r\n",
        "0\r\n\r\n",
        "0\r\n",
        "A: b\r\n",
        "A:  \r\n",
        "A: b \r\n",
        ";x",
        "1",
        "\0",
        "\u{e4}",
        "#",
        "X-Long-Name-Of-A-Field: and a value that is long enough for the vector code\r\n",
    ]);
    prop::collection::vec(fragment, 0..14).prop_map(|fragments| fragments.concat().into_bytes())
}

/// Generates variants of the test connections with some bytes changed, inserted or removed.
fn damaged_connections() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![select(b"\r\n \t:;,0a\0\x7f\x80#/.".to_vec()), any::<u8>()];
    let change = (any::<Index>(), byte, 0..3);
    (select(CONNECTIONS), prop::collection::vec(change, 0..4)).prop_map(|(text, changes)| {
        let mut text = text.as_bytes().to_vec();
        for (position, byte, operation) in changes {
            let position = position.index(text.len());
            match operation {
                0 => text[position] = byte,
                1 => text.insert(position, byte),
                _ if text.len() > 1 => _ = text.remove(position),
                _ => {}
            }
        }
        text
    })
}

/// Generates requests that often have identical fields, like those from a single client.
fn requests_of_one_client() -> impl Strategy<Value = Vec<u8>> {
    let line = select(vec![
        "GET / HTTP/1.1\r\n",
        "GET /a/longer/path?with=query HTTP/1.1\r\n",
        "HEAD / HTTP/1.1\r\n",
        "GET / HTTP/1.0\r\n",
        "POST http://x/ HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "CONNECT h:1 HTTP/1.1\r\n",
        "GET * HTTP/1.1\r\n",
        "\r\n",
    ]);
    let fields = select(vec![
        "Host: h\r\n\r\n",
        "Host: h\r\n\r\n",
        "Host: h\r\nA: b\r\n\r\n",
        "Host: h\r\nConnection: keep-alive\r\n\r\n",
        "Host: h\r\nConnection: keep-alive, upgrade\r\nUpgrade: x\r\n\r\n",
        "Host: i\r\nContent-Length: 3\r\n\r\nabc",
        "Host: h\r\nContent-Length: 0\r\n\r\n",
        "Host: h\r\nA: b\n\r\n",
        "Host: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "\r\n",
    ]);
    prop::collection::vec((line, fields), 1..8).prop_map(|requests| {
        requests.iter().flat_map(|(line, fields)| [*line, *fields]).collect::<String>().into()
    })
}

fn sorted_offsets(text: &[u8], splits: &[Index]) -> Vec<usize> {
    let mut offsets: Vec<_> = splits.iter().map(|split| split.index(text.len() + 1)).collect();
    offsets.sort_unstable();
    offsets
}

#[test]
fn fault_31_single_split_at_any_offset_does_not_change_outcome() {
    for text in CONNECTIONS {
        let expected = feed_whole(text);
        assert_agrees(text.as_bytes(), &expected, Limits::default());
        for offset in 0..=text.len() {
            let outcome = feed(split_at(text.as_bytes(), &[offset]), Limits::default());
            assert_eq!(outcome, expected, "{text:?} split at {offset}");
        }
        assert_eq!(feed(text.as_bytes().chunks(1), Limits::default()), expected, "{text:?} byte by byte");
    }
}

#[test]
fn fault_31_two_splits_at_any_offsets_do_not_change_outcome() {
    for text in CONNECTIONS.iter().filter(|text| text.len() < 90) {
        let expected = feed_whole(text);
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let outcome = feed(split_at(text.as_bytes(), &[first, second]), Limits::default());
                assert_eq!(outcome, expected, "{text:?} split at {first} and {second}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fault_31_splits_do_not_change_outcome_of_damaged_connections(
        text in damaged_connections(), splits in prop::collection::vec(any::<Index>(), 0..6), limits in limits(),
    ) {
        let expected = feed([&text[..]], limits);
        assert_agrees(&text, &expected, limits);
        prop_assert_eq!(&feed(split_at(&text, &sorted_offsets(&text, &splits)), limits), &expected);
        prop_assert_eq!(&feed(text.chunks(1), limits), &expected);
    }

    #[test]
    fn fault_31_splits_do_not_change_outcome_of_request_fragments(
        text in request_fragments(), splits in prop::collection::vec(any::<Index>(), 0..6), limits in limits(),
    ) {
        let expected = feed([&text[..]], limits);
        assert_agrees(&text, &expected, limits);
        prop_assert_eq!(&feed(split_at(&text, &sorted_offsets(&text, &splits)), limits), &expected);
        prop_assert_eq!(&feed(text.chunks(1), limits), &expected);
    }

    #[test]
    fn fault_31_splits_do_not_change_outcome_of_requests_of_one_client(
        text in requests_of_one_client(), splits in prop::collection::vec(any::<Index>(), 0..6), limits in limits(),
    ) {
        let expected = feed([&text[..]], limits);
        assert_agrees(&text, &expected, limits);
        prop_assert_eq!(&feed(split_at(&text, &sorted_offsets(&text, &splits)), limits), &expected);
        prop_assert_eq!(&feed(text.chunks(1), limits), &expected);
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_rejected(
        text in prop::collection::vec(any::<u8>(), 0..200), splits in prop::collection::vec(any::<Index>(), 0..4),
    ) {
        let expected = feed([&text[..]], Limits::default());
        assert_agrees(&text, &expected, Limits::default());
        prop_assert_eq!(feed(split_at(&text, &sorted_offsets(&text, &splits)), Limits::default()), expected);
    }

    #[test]
    fn arbitrary_chunked_bodies_are_decoded_or_rejected(
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            prop::collection::vec(select(b"0123af;= \t\"\r\n:A".to_vec()), 0..60),
        ],
        splits in prop::collection::vec(any::<Index>(), 0..4),
        limits in limits(),
    ) {
        let head = &b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"[..];
        // The limits must allow this head.
        let limits = Limits { max_request_line_bytes: 100, max_head_bytes: 200, max_fields: 2, ..limits };
        let text = [head, &body].concat();
        let expected = feed([&text[..]], limits);
        assert_agrees(&text, &expected, limits);
        prop_assert_eq!(feed(split_at(&text, &sorted_offsets(&text, &splits)), limits), expected);
    }
}
