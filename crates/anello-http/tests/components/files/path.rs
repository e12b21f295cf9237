//! Tests for request target resolution.

use anello_http::files::listing::{Contents, Listing};
use anello_http::files::path::{Dotfiles, MAX_NAME_BYTES, MAX_PATH_BYTES, PathError, TargetPath, resolve};
use anello_http::files::stamp::Timestamp;
use proptest::prelude::*;
use proptest::sample::select;

fn resolved(target: &str) -> TargetPath<'_> {
    resolve(target, Dotfiles::Hide).unwrap_or_else(|error| panic!("{target}: {error}"))
}

fn rejected(target: &str) -> PathError {
    resolve(target, Dotfiles::Hide).expect_err(target)
}

#[test]
fn fault_32_traversal_in_any_encoding_is_rejected() {
    use PathError::{
        Backslash, ControlByte, DotSegment, EncodedSlash, Hidden, InvalidForm, InvalidPercentEncoding,
        InvalidUtf8, TooLong,
    };
    let long_name = format!("/{}", "a".repeat(256));
    let long_encoded_name = format!("/{}", "%61".repeat(256));
    let long_path = "/a".repeat(2048);
    let cases = [
        ("/..", DotSegment),
        ("/../etc/passwd", DotSegment),
        ("/a/../b", DotSegment),
        ("/a/..", DotSegment),
        ("/a/../../etc/passwd", DotSegment),
        ("/./a", DotSegment),
        ("/a/.", DotSegment),
        ("/a/./", DotSegment),
        ("/.%2e/etc/passwd", DotSegment),
        ("/%2e./etc/passwd", DotSegment),
        ("/%2e%2E/etc/passwd", DotSegment),
        ("/%2e", DotSegment),
        ("/a//../b", DotSegment),
        ("/..?a", DotSegment),
        ("http://host/../etc/passwd", DotSegment),
        ("http://host/%2e%2e/etc/passwd", DotSegment),
        ("/..%2fetc/passwd", EncodedSlash),
        ("/..%2Fetc%2Fpasswd", EncodedSlash),
        ("/%2e%2e%2f", EncodedSlash),
        ("/%2fetc/passwd", EncodedSlash),
        ("/a%2fb", EncodedSlash),
        ("/..\\etc\\passwd", Backslash),
        ("/..%5c..%5Cetc", Backslash),
        ("/a\\b", Backslash),
        ("/\\\\host\\share", Backslash),
        ("/%5chost", Backslash),
        ("/a%00", ControlByte),
        ("/a%00.html", ControlByte),
        ("/%00/../etc", ControlByte),
        ("/a\0b", ControlByte),
        ("/a%0d%0aSet-Cookie:%20a", ControlByte),
        ("/a%7f", ControlByte),
        ("/a\tb", ControlByte),
        ("/%1b[31m", ControlByte),
        ("/%c0%ae%c0%ae/etc/passwd", InvalidUtf8),
        ("/%e0%80%ae%e0%80%ae/etc", InvalidUtf8),
        ("/%c0%af", InvalidUtf8),
        ("/%ff", InvalidUtf8),
        ("/%ed%a0%80", InvalidUtf8),
        ("/%", InvalidPercentEncoding),
        ("/%2", InvalidPercentEncoding),
        ("/%zz", InvalidPercentEncoding),
        ("/%2x", InvalidPercentEncoding),
        ("/%u002e%u002e/etc", InvalidPercentEncoding),
        ("/%%32%65", InvalidPercentEncoding),
        ("/%é", InvalidPercentEncoding),
        ("", InvalidForm),
        ("*", InvalidForm),
        ("etc/passwd", InvalidForm),
        ("../etc/passwd", InvalidForm),
        ("host:443", InvalidForm),
        ("http://", InvalidForm),
        ("http:///etc/passwd", InvalidForm),
        ("http://?a", InvalidForm),
        ("http://#a", InvalidForm),
        ("http:/etc/passwd", InvalidForm),
        ("file:///etc/passwd", InvalidForm),
        ("httpé://", InvalidForm),
        ("/a#b", InvalidForm),
        ("/a?b#c", InvalidForm),
        ("/a#/../b", InvalidForm),
        ("/.git/config", Hidden),
        ("/.env", Hidden),
        ("/a/.htpasswd", Hidden),
        ("/%2eenv", Hidden),
        ("/...", Hidden),
        ("/a/.well-known/b", Hidden),
        ("/.well-known/.hidden", Hidden),
        ("/.well-known.old", Hidden),
        ("/.Well-Known/a", Hidden),
        (long_name.as_str(), TooLong),
        (long_encoded_name.as_str(), TooLong),
        (long_path.as_str(), TooLong),
    ];
    for (target, expected) in cases {
        assert_eq!(resolve(target, Dotfiles::Hide), Err(expected), "{target}");
        assert!(matches!(expected.status(), 400 | 404), "{target}");
        if expected != Hidden {
            assert_eq!(resolve(target, Dotfiles::Serve), Err(expected), "{target} with dotfiles");
        }
    }
}

#[test]
fn hidden_file_has_status_of_missing_file() {
    assert_eq!(rejected("/.git/config").status(), 404);
    assert_eq!(resolve("/.git/config", Dotfiles::Serve).unwrap().relative(), ".git/config");
}

#[test]
fn fault_32_double_encoding_is_decoded_once() {
    let cases = [
        ("/%252e%252e/etc", "%2e%2e/etc"),
        ("/%252e%252e%252fetc", "%2e%2e%2fetc"),
        ("/a%255cb", "a%5cb"),
        ("/a%2500", "a%00"),
        ("/100%25", "100%"),
    ];
    for (target, relative) in cases {
        assert_eq!(resolved(target).relative(), relative, "{target}");
    }
}

#[test]
fn ordinary_targets_resolve_to_their_path() {
    let cases = [
        ("/", "", true, None),
        ("/?", "", true, Some("")),
        ("/?a=/../b", "", true, Some("a=/../b")),
        ("/a", "a", false, None),
        ("/a/", "a", true, None),
        ("/a/b.html?c?d", "a/b.html", false, Some("c?d")),
        ("/a/b/?q", "a/b", true, Some("q")),
        ("/a.b..c", "a.b..c", false, None),
        ("/a..", "a..", false, None),
        ("/a%20b", "a b", false, None),
        ("/a b", "a b", false, None),
        ("/%61", "a", false, None),
        ("/%7Euser/", "~user", true, None),
        ("/caf%C3%A9", "café", false, None),
        ("/café", "café", false, None),
        ("/a+b", "a+b", false, None),
        ("/a%3Fb?c", "a?b", false, Some("c")),
        ("/a%23b", "a#b", false, None),
        ("/a:b@c;d=e,f'(g)!*$&", "a:b@c;d=e,f'(g)!*$&", false, None),
        ("//", "", true, None),
        ("//a", "a", false, None),
        ("///a//b///", "a/b", true, None),
        ("//host/a", "host/a", false, None),
        ("/a//%62", "a/b", false, None),
        ("/.well-known/acme-challenge/x", ".well-known/acme-challenge/x", false, None),
        ("/.well-known", ".well-known", false, None),
        ("/%2ewell-known/", ".well-known", true, None),
        ("http://host", "", true, None),
        ("http://host/", "", true, None),
        ("HTTP://host:80/a/b?c", "a/b", false, Some("c")),
        ("https://[::1]:443/a/", "a", true, None),
        ("http://host?a/b", "", true, Some("a/b")),
    ];
    for (target, relative, is_directory, query) in cases {
        let path = resolved(target);
        assert_eq!(
            (path.relative(), path.is_directory(), path.query()),
            (relative, is_directory, query),
            "{target}"
        );
    }
}

#[test]
fn names_and_paths_of_maximum_length_are_accepted() {
    let name = format!("/{}/", "a".repeat(MAX_NAME_BYTES));
    assert_eq!(resolved(&name).relative().len(), MAX_NAME_BYTES);
    let path = "/a".repeat(2047);
    assert_eq!(resolved(&path).relative().len(), 4093);
}

#[test]
fn directory_redirect_stays_on_same_host() {
    let cases = [
        ("/a", "/a/"),
        ("//evil.example", "/evil.example/"),
        ("///evil.example//x", "/evil.example/x/"),
        ("/a b/%C3%BC?q=1&r=%0d", "/a%20b/%C3%BC/?q=1&r=%0d"),
        ("/a%3Fb", "/a%3Fb/"),
        ("/%253a", "/%253a/"),
        ("/a?q=ü\\", "/a/?q=%C3%BC%5C"),
        ("/a?[|^`{}]%4%zz%20%", "/a/?%5B%7C%5E%60%7B%7D%5D%254%25zz%20%25"),
        ("/a?-._~!$&'()*+,;=:@/?", "/a/?-._~!$&'()*+,;=:@/?"),
        ("/javascript:alert(1)", "/javascript%3Aalert%281%29/"),
        ("/", "/"),
    ];
    for (target, location) in cases {
        assert_eq!(resolved(target).redirect_location(), location, "{target}");
    }
}

#[test]
fn spa_routes_have_no_extension() {
    for target in ["/", "/settings", "/users/4/", "/v1.2/users"] {
        assert!(resolved(target).has_no_extension(), "{target}");
    }
    for target in ["/app.js", "/a/b.png", "/a."] {
        assert!(!resolved(target).has_no_extension(), "{target}");
    }
}

#[test]
fn errors_describe_their_cause() {
    let invalid_encoding =
        "invalid percent-encoding: % must be followed by two hexadecimal digits (a literal % is %25)";
    assert_eq!(rejected("/%zz").to_string(), invalid_encoding);
    assert_eq!(
        rejected("/..").to_string(),
        "the path contains a . or .. segment (resolve it before sending the request)"
    );
}

#[test]
fn unencoded_targets_are_borrowed() {
    for target in ["/", "/a.html?b", "/a/b/", "/.well-known/x", "/café", "http://host/a/b/"] {
        let path = resolved(target);
        let memory = target.as_bytes().as_ptr_range();
        assert!((memory.start..=memory.end).contains(&path.relative().as_ptr()), "{target}");
    }
}

/// Generates targets from fragments that attackers and clients use.
fn targets() -> impl Strategy<Value = String> {
    const FRAGMENTS: &str = "/ // . .. ... a bc %2e %2E %2f %5c \\ %00 %0a %25 %252e ü %c3%bc %c0%ae %ff % %4 ? # \
        %20 .well-known http:// host * : \u{7f} a.b ~ \u{202e}";
    let fragments: Vec<_> = FRAGMENTS.split(' ').chain([" "]).collect();
    let targets = prop::collection::vec(select(fragments), 0..12).prop_map(|fragments| fragments.concat());
    prop_oneof![targets.clone().prop_map(|rest| format!("/{rest}")), targets, any::<String>()]
}

/// Returns the error if a file with this name is rejected. Dotfiles are hidden.
fn name_error(name: &str, at_top: bool) -> Option<PathError> {
    match name {
        "." | ".." => Some(PathError::DotSegment),
        _ if name.bytes().any(|byte| byte.is_ascii_control()) => Some(PathError::ControlByte),
        _ if name.contains('\\') => Some(PathError::Backslash),
        _ if name.starts_with('.') && !(at_top && name == ".well-known") => Some(PathError::Hidden),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fault_32_accepted_targets_stay_below_document_root(target in targets(), serve_dotfiles in any::<bool>()) {
        let dotfiles = if serve_dotfiles { Dotfiles::Serve } else { Dotfiles::Hide };
        let Ok(path) = resolve(&target, dotfiles) else { return Ok(()) };
        let relative = path.relative();
        prop_assert!(!relative.starts_with('/') && !relative.ends_with('/'));
        prop_assert!(!relative.contains(['\0', '\\', '\n']));
        prop_assert!(relative.len() <= MAX_PATH_BYTES);
        if !relative.is_empty() {
            for (index, name) in relative.split('/').enumerate() {
                prop_assert!(!name.is_empty() && name != "." && name != "..", "{name:?}");
                let is_well_known = index == 0 && name == ".well-known";
                prop_assert!(serve_dotfiles || !name.starts_with('.') || is_well_known, "{name:?}");
                prop_assert!(name.len() <= MAX_NAME_BYTES);
            }
        }
        let location = path.redirect_location();
        prop_assert!(location.starts_with('/') && !location.starts_with("//"));
        prop_assert!(location.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte)));
        let again = resolve(&location, dotfiles).unwrap();
        prop_assert_eq!((again.relative(), again.is_directory()), (relative, true));
    }

    /// A URL is always resolved by `resolve_slow`, whereas a plain path is usually resolved by `resolve_fast`.
    #[test]
    fn fast_resolution_matches_slow_resolution(target in targets()) {
        if target.starts_with('/') {
            let url = format!("http://host{target}");
            for dotfiles in [Dotfiles::Hide, Dotfiles::Serve] {
                prop_assert_eq!(resolve(&target, dotfiles), resolve(&url, dotfiles));
            }
        }
    }

    #[test]
    fn encoded_names_resolve_to_same_name(name in "[^/]{1,60}", directory in "[a-z]{0,3}") {
        let at_top = directory.is_empty();
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let target_of = |name: &str| format!("/{directory}{}{name}", if at_top { "" } else { "/" });
        let target = target_of(&encoded);
        let mut listing = Listing::new(&directory, Dotfiles::Hide, 1);
        prop_assert_eq!(listing.includes(name.as_bytes()), name_error(&name, at_top).is_none());
        if let Some(error) = name_error(&name, at_top) {
            prop_assert_eq!(resolve(&target, Dotfiles::Hide), Err(error));
            return Ok(());
        }
        let is_added = listing.add(name.as_bytes(), Contents::File { bytes: 0 }, Timestamp::default());
        prop_assert!(is_added);
        let page = listing.html();
        let (_, row) = page.split_once("<use href=\"#file\"/></svg><a href=\"").expect("row of the file");
        let (link, _) = row.split_once('"').expect("end of the link");
        for target in [target, target_of(link)] {
            let relative = resolved(&target).relative().to_owned();
            prop_assert_eq!(relative.rsplit('/').next(), Some(&name[..]));
        }
    }
}
