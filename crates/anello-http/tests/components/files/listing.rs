//! Tests for directory listings.

use anello_http::files::fields::FieldLines;
use anello_http::files::listing::{Contents, Format, Listing};
use anello_http::files::path::{Dotfiles, resolve};
use anello_http::files::stamp::Timestamp;
use proptest::prelude::*;
use proptest::sample::select;

fn file(bytes: u64) -> Contents {
    Contents::File { bytes }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

fn listing(path: &str, entries: &[(&str, Contents)]) -> Listing {
    let mut listing = Listing::new(path, Dotfiles::Hide, 1000);
    for (name, contents) in entries {
        assert!(listing.add(name.as_bytes(), *contents, at(1_790_000_000)));
    }
    listing
}

/// Returns the links of the table in order.
fn links(page: &str) -> Vec<&str> {
    let table = page.split("<tbody>").nth(1).unwrap();
    table.split("<a href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn directories_precede_files_and_names_sort_case_insensitively() {
    let entries = [
        ("b", file(1)),
        ("Z", Contents::Directory),
        ("a", file(1)),
        ("B", file(1)),
        ("ä", file(1)),
        ("y", Contents::Directory),
    ];
    let page = listing("", &entries).html();
    assert_eq!(links(&page), ["y/", "Z/", "a", "B", "b", "%C3%A4"]);
    assert!(page.contains("<caption>2 directories, 4 files, 4 B</caption>"));
}

#[test]
fn breadcrumbs_link_every_parent_and_root_has_none() {
    let top = listing("", &[]).html();
    assert!(links(&top).is_empty() && top.contains("<caption>Empty directory</caption>"));
    assert!(top.contains("<h1>Index of <a href=\"./\" aria-label=\"Root directory\">/</a></h1>"));
    let below = listing("a b/<c>", &[]).html();
    assert_eq!(links(&below), ["../"]);
    assert!(below.contains("<title>Index of /a b/&lt;c&gt;/</title>"));
    assert!(below.contains(
        "<a href=\"../../\" aria-label=\"Root directory\">/</a><wbr><a href=\"../\"><bdi>a b</bdi></a>/"
    ));
    assert!(below.contains("<a href=\"./\" aria-current=\"page\"><bdi>&lt;c&gt;</bdi></a>/</h1>"));
}

/// File names with markup, URL syntax or unusual Unicode.
fn hostile_names() -> Vec<String> {
    let markup = [
        "<script>alert(1)<script>",
        "\"onmouseover=\"alert(1)",
        "' onclick='x",
        "&lt;b&gt;",
        "a&b=c",
        "--",
        "]]>",
        "<!--",
        "<title>",
        "<style>",
        "{{7*7}}",
        "${x}",
        "`x`",
    ];
    let links = [
        "javascript:alert(1)",
        "%2e%2e%2f",
        "100%",
        "?query",
        "#fragment",
        "C:",
        "...",
        "~",
        "+",
        ";",
        "-rf",
    ];
    let text = ["a b  c", "\u{202e}gpj.exe", "日本語.txt", "e\u{301}", "👩‍💻.md", "a\u{a0}b", "\u{2028}"];
    let names = [&markup[..], &links, &text].concat();
    names.iter().map(|&name| name.to_owned()).chain(["x".repeat(255), "ü".repeat(127)]).collect()
}

#[test]
fn hostile_names_are_escaped_and_their_links_resolve() {
    let mut listing = Listing::new("dir", Dotfiles::Serve, 1000);
    for name in hostile_names() {
        assert!(listing.includes(name.as_bytes()), "{name}");
        assert!(listing.add(name.as_bytes(), file(1), at(0)));
    }
    let page = listing.html();
    for tag in ["<script", "<!--", "<b>", "onmouseover=\"", "onclick='", "href=\"javascript:"] {
        assert!(!page.contains(tag), "{tag}");
    }
    assert_eq!(page.matches("<title>").count(), 1);
    assert_eq!(page.matches("<style>").count(), 1);
    let mut resolved_names = Vec::new();
    for link in links(&page).into_iter().skip(1) {
        let target = format!("/dir/{link}");
        resolved_names.push(
            resolve(&target, Dotfiles::Serve).unwrap().relative().strip_prefix("dir/").unwrap().to_owned(),
        );
    }
    resolved_names.sort();
    let mut expected = hostile_names();
    expected.sort();
    assert_eq!(resolved_names, expected);
}

#[test]
fn sizes_switch_unit_before_rounding_to_1024() {
    let cases = [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (10_188, "9.9 KiB"),
        (10_189, "10 KiB"),
        (1024 * 1023, "1023 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (1024 * 1024, "1.0 MiB"),
        (5 * 1024 * 1024 * 1024, "5.0 GiB"),
        (u64::MAX, "16 EiB"),
    ];
    for (bytes, text) in cases {
        let page = listing("", &[("a", file(bytes))]).html();
        assert!(page.contains(&format!("<td title=\"{bytes} bytes\">{text}</td>")), "{bytes}");
    }
}

#[test]
fn times_have_machine_readable_and_display_form() {
    let page = |seconds, nanoseconds| {
        let mut listing = Listing::new("", Dotfiles::Hide, 1000);
        assert!(listing.add(b"a", file(1), Timestamp { seconds, nanoseconds }));
        listing.html()
    };
    let time = "<time datetime=\"2026-09-21T14:13:20Z\">2026-09-21<span class=\"clock\"> 14:13</span></time>";
    assert!(page(1_790_000_000, 999_999_999).contains(time));
    assert!(page(-1, 0).contains(">1970-01-01<"));
    assert!(page(i64::MAX, 0).contains(">9999-12-31<"));
}

#[test]
fn markup_characters_are_escaped() {
    let page = listing("<a href=\"x\">&'", &[]).html();
    assert!(page.contains("<title>Index of /&lt;a href=&quot;x&quot;&gt;&amp;&#39;/</title>"));
}

#[test]
fn unserved_names_are_not_listed() {
    let hidden = [&b".env"[..], b".", b"..", b"", b"a\\b", b"a\nb", b"\xff\xfe", b"a/b", &[b'a'; 256]];
    let mut listing = Listing::new("", Dotfiles::Hide, 1000);
    for name in hidden {
        assert!(!listing.includes(name), "{name:?}");
        assert!(listing.add(name, file(1), at(0)), "{name:?}");
    }
    assert!(listing.html().contains("Empty directory"));
    assert!(listing.includes(b".well-known"));
    assert!(!Listing::new("a", Dotfiles::Hide, 1000).includes(b".well-known"));
    assert!(Listing::new("a", Dotfiles::Serve, 1000).includes(b".env"));
}

#[test]
fn listing_beyond_limit_is_truncated_and_marked() {
    let mut listing = Listing::new("", Dotfiles::Hide, 2);
    assert!(listing.add(b"a", file(1), at(0)) && listing.add(b"b", file(1), at(0)));
    assert!(!listing.html().contains("role=\"note\""));
    assert!(listing.add(b".hidden", file(1), at(0)), "hidden names do not count towards the limit");
    assert!(!listing.add(b"c", file(1), at(0)));
    assert!(
        listing.html().contains("<p role=\"note\">This directory has more entries; only 2 are listed.</p>")
    );
    assert!(listing.json().ends_with("],\"complete\":false}"));
}

#[test]
fn page_loads_no_resources() {
    let page = listing("", &[("a", file(1))]).html();
    for loading in ["<script", "<link", "<img", "src=", "url(", "@import", "http:", "https:"] {
        assert!(!page.contains(loading), "{loading}");
    }
}

#[test]
fn json_has_same_entries_in_same_order() {
    let entries = [("b\"\u{1f4a9}", file(u64::MAX)), ("a", Contents::Directory)];
    assert_eq!(
        listing("x/y", &entries).json(),
        "{\"path\":\"/x/y/\",\"entries\":[\
         {\"name\":\"a\",\"type\":\"folder\",\"modified\":\"2026-09-21T14:13:20Z\"},\
         {\"name\":\"b\\\"\u{1f4a9}\",\"type\":\"file\",\"size_bytes\":18446744073709551615,\
         \"modified\":\"2026-09-21T14:13:20Z\"}],\"complete\":true}"
    );
    assert_eq!(listing("", &[]).json(), "{\"path\":\"/\",\"entries\":[],\"complete\":true}");
}

#[test]
fn format_follows_query_and_accept() {
    let from_request = |accept: &str, query| {
        let lines: FieldLines<'_> = [accept.as_bytes()].into_iter().collect();
        Format::from_request(&lines, query)
    };
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let cases = [
        (browser, None, Format::Html),
        ("*/*", None, Format::Html),
        ("", None, Format::Html),
        ("application/json", None, Format::Json),
        ("Application/JSON", None, Format::Json),
        ("application/*", None, Format::Json),
        ("application/json;q=0.5, text/html", None, Format::Html),
        ("text/html;q=0.4, application/json;q=0.5", None, Format::Json),
        ("text/html;q=0, */*;q=0.1", None, Format::Json),
        ("application/json;q=0, application/*", None, Format::Html),
        ("application/json, */*;q=0.9", None, Format::Json),
        (browser, Some("format=json"), Format::Json),
        (browser, Some("a=b&format=json&c"), Format::Json),
        ("application/json", Some("format=html"), Format::Html),
        ("application/json", Some("format=xml"), Format::Json),
        (browser, Some("reformat=json"), Format::Html),
    ];
    for (accept, query, expected) in cases {
        assert_eq!(from_request(accept, query), expected, "{accept} {query:?}");
    }
    assert_eq!(Format::from_request(&FieldLines::default(), None), Format::Html);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn listed_names_are_escaped_and_their_links_resolve(
        names in prop::collection::btree_set("[^/]{1,20}|[<>&\"'%:?#. ]{1,10}", 0..8),
        path in select(vec!["", "a", "a/b"]),
        are_directories in any::<bool>(),
    ) {
        let mut listing = Listing::new(path, Dotfiles::Hide, 100);
        let contents = if are_directories { Contents::Directory } else { file(1) };
        let mut listed = Vec::new();
        for name in &names {
            prop_assert!(listing.add(name.as_bytes(), contents, at(0)));
            if listing.includes(name.as_bytes()) {
                listed.push(name.clone());
            }
        }
        let page = listing.html();
        let mut resolved_names = Vec::new();
        for link in links(&page).into_iter().filter(|link| *link != "../") {
            prop_assert!(link.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%/".contains(&byte)));
            let target = if path.is_empty() { format!("/{link}") } else { format!("/{path}/{link}") };
            let resolved = resolve(&target, Dotfiles::Hide).unwrap();
            prop_assert_eq!(resolved.is_directory(), are_directories);
            resolved_names.push(resolved.relative().rsplit('/').next().unwrap().to_owned());
        }
        resolved_names.sort();
        prop_assert_eq!(resolved_names, listed.clone());
        // In the table, `<` appears only in the page's own elements, so no name can open or close an element.
        let table = page.split("<tbody>").nth(1).unwrap();
        let row_tags = ["<tr", "</tr", "<th", "</th", "<td", "</td", "<a ", "</a", "<bdi>", "</bdi>"];
        let cell_tags = ["<svg ", "</svg", "<use ", "<time", "</time", "<span", "</span"];
        let page_tags = ["</tbody", "</table", "</main", "</body", "</html"];
        let tags = [&row_tags[..], &cell_tags, &page_tags].concat();
        for (offset, _) in table.match_indices('<') {
            let markup = &table[offset..];
            prop_assert!(tags.iter().any(|tag| markup.starts_with(tag)), "{markup}");
        }
        let parsed: serde_json::Value = serde_json::from_str(&listing.json()).unwrap();
        let mut in_json: Vec<_> =
            parsed["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
        in_json.sort_unstable();
        prop_assert_eq!(in_json, listed);
    }
}
