//! Tests for content negotiation.

use anello_http::files::fields::FieldLines;
use anello_http::files::negotiate::Choice::{Encoded, Identity, NotAcceptable};
use anello_http::files::negotiate::Coding::{Brotli, Gzip, Zstandard};
use anello_http::files::negotiate::{Choice, Coding, Codings, negotiate};

use proptest::prelude::*;
use proptest::sample::select;

fn choice(accept_encoding: &str, variants: &[Coding]) -> Choice {
    let lines: FieldLines<'_> = [accept_encoding.as_bytes()].into_iter().collect();
    negotiate(&lines, variants.iter().copied().collect())
}

#[test]
fn equal_weights_follow_preference_order() {
    const BROWSER: &str = "gzip, deflate, br, zstd";
    assert_eq!(choice(BROWSER, &[Gzip, Zstandard, Brotli]), Encoded(Brotli));
    assert_eq!(choice(BROWSER, &[Gzip, Zstandard]), Encoded(Zstandard));
    assert_eq!(choice(BROWSER, &[Gzip]), Encoded(Gzip));
    assert_eq!(choice("gzip, deflate", &[Brotli, Zstandard]), Identity);
}

#[test]
fn highest_weight_is_selected() {
    let all = &Coding::ALL;
    let cases = [
        ("br;q=0.5, gzip;q=0.8", Encoded(Gzip)),
        ("br;q=0.5, zstd;q=0.501, gzip;q=0.5", Encoded(Zstandard)),
        ("br;q=0, gzip;q=0.001", Encoded(Gzip)),
        ("BR;Q=0.1, GZIP;q=0", Encoded(Brotli)),
        ("x-gzip", Encoded(Gzip)),
        ("*", Encoded(Brotli)),
        ("*;q=0.5, br;q=0", Encoded(Zstandard)),
        ("gzip;q=0.2, *;q=0.1", Encoded(Gzip)),
        ("br;q=0.2, *", Encoded(Zstandard)),
        ("deflate, *;q=0", NotAcceptable),
        ("*;q=0, gzip;q=0.1", Encoded(Gzip)),
        ("*;q=0", NotAcceptable),
        ("*;q=0, identity", Identity),
        ("identity", Identity),
        ("identity, gzip;q=0.9", Identity),
        ("identity;q=0.9, gzip;q=0.9", Encoded(Gzip)),
        ("identity;q=0.5, *;q=0.4", Identity),
        ("identity;q=0", NotAcceptable),
        ("identity;q=0, br", Encoded(Brotli)),
        ("identity;q=0, *", Encoded(Brotli)),
        ("gzip;q=0, br;q=0, zstd;q=0", Identity),
        ("gzip;q=0, br;q=0, zstd;q=0, identity;q=0", NotAcceptable),
        ("", Identity),
        ("nonsense", Identity),
        ("gzip;q=2", Identity),
        ("gzip;q=1;q=0", Encoded(Gzip)),
    ];
    for (accept_encoding, expected) in cases {
        assert_eq!(choice(accept_encoding, all), expected, "{accept_encoding}");
    }
    assert_eq!(
        choice("gzip;q=0.1, *;q=0.9", &[Gzip]),
        Identity,
        "the wildcard also covers the uncompressed file"
    );
}

#[test]
fn multiple_lines_form_one_list() {
    let lines: FieldLines<'_> = [&b"gzip;q=0.5"[..], b"br"].into_iter().collect();
    assert_eq!(negotiate(&lines, Codings::ALL), Encoded(Brotli));
}

#[test]
fn file_without_variants_is_not_negotiated() {
    let none = FieldLines::default();
    assert_eq!(negotiate(&none, Codings::ALL), Identity);
    let nothing_acceptable: FieldLines<'_> = [&b"*;q=0"[..]].into_iter().collect();
    assert_eq!(negotiate(&nothing_acceptable, Codings::NONE), Identity);
    assert_eq!(negotiate(&nothing_acceptable, Codings::NONE.with(Gzip)), NotAcceptable);
}

#[test]
fn coding_set_contains_inserted_codings() {
    assert_eq!(Coding::ALL.into_iter().collect::<Codings>(), Codings::ALL);
    let some = Codings::NONE.with(Gzip).with(Brotli);
    assert_eq!(some.iter().collect::<Vec<_>>(), [Brotli, Gzip]);
    assert!(!some.contains(Zstandard) && Codings::NONE.is_empty() && !some.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn selected_coding_exists_and_is_accepted(
        members in prop::collection::vec(
            (select(vec!["br", "zstd", "gzip", "identity", "*", "deflate"]), 0..=1000_u16),
            0..6,
        ),
        bits in 0..8_u8,
    ) {
        let text: Vec<_> =
            members.iter().map(|(token, q)| format!("{token};q={}.{:03}", q / 1000, q % 1000)).collect();
        let weight = |name: &str| members.iter().rev().find(|(token, _)| *token == name).map(|(_, q)| *q);
        let variants: Codings = Coding::ALL.into_iter().filter(|&coding| bits >> coding as u8 & 1 == 1).collect();
        let line = text.join(",");
        let lines: FieldLines<'_> = [line.as_bytes()].into_iter().collect();
        let identity = weight("identity").or(weight("*"));
        match negotiate(&lines, variants) {
            Encoded(coding) => {
                prop_assert!(variants.contains(coding));
                prop_assert!(weight(coding.token()).or(weight("*")).unwrap_or(0) > 0);
            }
            Identity => prop_assert!(variants.is_empty() || identity != Some(0)),
            NotAcceptable => prop_assert!(!variants.is_empty() && identity == Some(0)),
        }
    }
}
