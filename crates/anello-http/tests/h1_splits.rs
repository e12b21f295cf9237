//! Fault 31: where the network cuts the bytes makes no difference. Nor do any bytes make the decoder panic, keep more than
//! its limits allow, or accept a head that two programs could read differently.

#![forbid(unsafe_code)]

mod properties;

use anello_http::h1::Limits;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use properties::h1_support::cases::CONNECTIONS;
use properties::h1_support::{feed, whole};
use properties::request::assert_agrees;

/// Cut at these places, which are in order.
fn cut<'a>(text: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for &place in places.iter().chain([&text.len()]) {
        pieces.push(&text[start..place]);
        start = place;
    }
    pieces
}

/// Limits that some of what is generated stays within.
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

/// Text that looks like requests, put together from what matters to the decoder.
fn pieces_of_requests() -> impl Strategy<Value = Vec<u8>> {
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

/// A connection of the table with some bytes changed, taken away or put in.
fn damaged_connections() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![select(b"\r\n \t:;,0a\0\x7f\x80#/.".to_vec()), any::<u8>()];
    let change = (any::<Index>(), byte, 0..3);
    (select(CONNECTIONS), prop::collection::vec(change, 0..4)).prop_map(|(text, changes)| {
        let mut text = text.as_bytes().to_vec();
        for (place, byte, how) in changes {
            let place = place.index(text.len());
            match how {
                0 => text[place] = byte,
                1 => text.insert(place, byte),
                _ if text.len() > 1 => _ = text.remove(place),
                _ => {}
            }
        }
        text
    })
}

/// Requests of which many have the same fields, as those of one client have.
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

fn places(text: &[u8], places: &[Index]) -> Vec<usize> {
    let mut places: Vec<_> = places.iter().map(|place| place.index(text.len() + 1)).collect();
    places.sort_unstable();
    places
}

#[test]
fn fault_31_one_cut_anywhere_makes_no_difference() {
    for text in CONNECTIONS {
        let expected = whole(text);
        assert_agrees(text.as_bytes(), &expected, Limits::default());
        for place in 0..=text.len() {
            let outcome = feed(cut(text.as_bytes(), &[place]), Limits::default());
            assert_eq!(outcome, expected, "{text:?} cut at {place}");
        }
        assert_eq!(feed(text.as_bytes().chunks(1), Limits::default()), expected, "{text:?} byte by byte");
    }
}

#[test]
fn fault_31_two_cuts_anywhere_make_no_difference() {
    for text in CONNECTIONS.iter().filter(|text| text.len() < 90) {
        let expected = whole(text);
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let outcome = feed(cut(text.as_bytes(), &[first, second]), Limits::default());
                assert_eq!(outcome, expected, "{text:?} cut at {first} and {second}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fault_31_damaged_connections_come_to_the_same_however_they_are_cut(
        text in damaged_connections(), splits in prop::collection::vec(any::<Index>(), 0..6), limits in limits(),
    ) {
        let expected = feed([&text[..]], limits);
        assert_agrees(&text, &expected, limits);
        prop_assert_eq!(&feed(cut(&text, &places(&text, &splits)), limits), &expected);
        prop_assert_eq!(&feed(text.chunks(1), limits), &expected);
    }

    #[test]
    fn fault_31_what_looks_like_requests_comes_to_the_same_however_it_is_cut(
        text in pieces_of_requests(), splits in prop::collection::vec(any::<Index>(), 0..6), limits in limits(),
    ) {
        let expected = feed([&text[..]], limits);
        assert_agrees(&text, &expected, limits);
        prop_assert_eq!(&feed(cut(&text, &places(&text, &splits)), limits), &expected);
        prop_assert_eq!(&feed(text.chunks(1), limits), &expected);
    }

    #[test]
    fn fault_31_requests_of_one_client_come_to_the_same_however_they_are_cut(
        text in requests_of_one_client(), splits in prop::collection::vec(any::<Index>(), 0..6), limits in limits(),
    ) {
        let expected = feed([&text[..]], limits);
        assert_agrees(&text, &expected, limits);
        prop_assert_eq!(&feed(cut(&text, &places(&text, &splits)), limits), &expected);
        prop_assert_eq!(&feed(text.chunks(1), limits), &expected);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        text in prop::collection::vec(any::<u8>(), 0..200), splits in prop::collection::vec(any::<Index>(), 0..4),
    ) {
        let expected = feed([&text[..]], Limits::default());
        assert_agrees(&text, &expected, Limits::default());
        prop_assert_eq!(feed(cut(&text, &places(&text, &splits)), Limits::default()), expected);
    }

    #[test]
    fn any_bytes_behind_a_head_in_chunks_are_decoded_or_refused(
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            prop::collection::vec(select(b"0123af;= \t\"\r\n:A".to_vec()), 0..60),
        ],
        splits in prop::collection::vec(any::<Index>(), 0..4),
        limits in limits(),
    ) {
        let head = &b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"[..];
        // Wide enough for this head.
        let limits = Limits { max_request_line_bytes: 100, max_head_bytes: 200, max_fields: 2, ..limits };
        let text = [head, &body].concat();
        let expected = feed([&text[..]], limits);
        assert_agrees(&text, &expected, limits);
        prop_assert_eq!(feed(cut(&text, &places(&text, &splits)), limits), expected);
    }
}
