//! Prints the listing of a fictitious directory with unusual names, to be viewed in a browser: `cargo run -p
//! anello-http --example listing > listing.html`. With `-- json`, prints the JSON format instead.

use anello_http::files::listing::{Contents, Listing};
use anello_http::files::path::Dotfiles;
use anello_http::files::stamp::Timestamp;

fn main() {
    let mut listing = Listing::new("downloads/<b>bold & \"quoted\"/100%", Dotfiles::Hide, 24);
    let directories = ["photos", "Music & Films", "<script>alert(1)", "日本語", "with  two spaces"];
    let long = "a-very-long-name-without-any-place-to-break-it-".repeat(5);
    let files = [
        ("README.md", 1023),
        ("index of everything.txt", 10_188),
        ("\"onmouseover=\"alert(1)", 0),
        ("it's 'quoted'", 12),
        ("&lt;not a tag&gt;", 999),
        ("javascript:alert(1)", 4096),
        ("%2e%2e%2fetc%2fpasswd", 70_000),
        ("100%.pdf", 1 << 20),
        ("what?#is this", 5 << 30),
        ("right-to-left \u{202e}gpj.exe", 3 << 40),
        ("emoji 👩‍💻 and äöü.html", u64::MAX),
        (".hidden", 1),
        (long.as_str(), 123_456_789),
        ("zz last.tar.gz", 700_000_000),
    ];
    let entries = directories.iter().map(|&name| (name, Contents::Directory));
    let entries = entries.chain(files.iter().map(|&(name, bytes)| (name, Contents::File { bytes })));
    let more = ["more", "than", "fits", "into", "the", "page", "that", "is", "shown"];
    for (index, (name, contents)) in entries.chain(more.map(|name| (name, Contents::Directory))).enumerate() {
        let modified = Timestamp { seconds: 1_790_000_000 - 40_000 * index as i64, nanoseconds: 0 };
        if !listing.add(name.as_bytes(), contents, modified) {
            break;
        }
    }
    let as_json = std::env::args().nth(1).is_some_and(|format| format == "json");
    println!("{}", if as_json { listing.json() } else { listing.html() });
}
