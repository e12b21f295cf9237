//! Runs as they are kept: the JSON of one, or a page that has the JSON of each of its runs in it, compressed.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::result::LabResult;

/// How an element with the raw data of a run begins; its identifier follows.
const ELEMENT: &str = "<script type=\"application/gzip\" id=\"raw";
const END: &str = "</script>";

/// How a page ends.
const PAGE_END: &str = "</html>";

const TRUNCATED: &str = "raw data that are cut short: the file is not whole";

/// No run is longer than this; what claims to be is not unpacked.
const MAX_JSON_BYTES: u64 = 1 << 30;

/// The element of a page with the JSON of its run number `run`: gzip in base64, of which no sign means anything in HTML.
pub(crate) fn element(run: usize, json: &str) -> String {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory cannot fail.
    let packed = encoder.write_all(json.as_bytes()).and_then(|()| encoder.finish()).unwrap_or_default();
    format!("{ELEMENT}{run}\">{}{END}", STANDARD.encode(packed))
}

/// The runs of a file: one if it is JSON, all that are on it if it is a page that the lab wrote.
///
/// # Errors
/// The file cannot be read, or holds no result of this version; the text names the file.
pub fn read_runs(path: &Path) -> io::Result<Vec<LabResult>> {
    let named = |kind, why: String| io::Error::new(kind, format!("cannot read {}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| named(error.kind(), error.to_string()))?;
    runs_of(&text).map_err(|why| named(io::ErrorKind::InvalidData, why))
}

/// The runs of a text, see [`read_runs`].
///
/// # Errors
/// What is wrong with it.
pub fn runs_of(text: &str) -> Result<Vec<LabResult>, String> {
    if !text.trim_start().starts_with('<') {
        return LabResult::from_json(text).map(|result| vec![result]);
    }
    let elements: Vec<&str> = text.split(ELEMENT).skip(1).collect();
    let Some(last) = elements.last() else { return Err("a page without the raw data of a run".to_owned()) };
    // Where the page has no end, runs may be missing without a trace.
    if !last.contains(PAGE_END) {
        return Err(TRUNCATED.to_owned());
    }
    let run = |element: &str| {
        let packed = element.split_once('>').and_then(|(_, rest)| rest.split_once(END));
        LabResult::from_json(&unpack(packed.ok_or(TRUNCATED)?.0)?)
    };
    elements.into_iter().map(run).collect()
}

fn unpack(packed: &str) -> Result<String, String> {
    let damaged = |why: String| format!("raw data that are damaged: {why}");
    let packed = STANDARD.decode(packed).map_err(|error| damaged(error.to_string()))?;
    let mut json = String::new();
    let mut decoder = GzDecoder::new(packed.as_slice()).take(MAX_JSON_BYTES);
    decoder.read_to_string(&mut json).map_err(|error| damaged(error.to_string()))?;
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_run_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "not the JSON of a run"),
            ("<!doctype html><p>hello", "without the raw data"),
            ("<!doctype html><script type=\"application/gzip\" id=\"raw0\">!</script></html>", "damaged"),
            ("<!doctype html><script type=\"application/gzip\" id=\"raw0\">AAAA</script></html>", "damaged"),
            ("<!doctype html><script type=\"application/gzip\" id=\"raw0\">AAAA</script>", "cut short"),
            ("<!doctype html><script type=\"application/gzip\" id=\"raw0\">AAAA</html>", "cut short"),
            ("<!doctype html><script type=\"application/gzip\" id=\"raw0\">AAAA", "cut short"),
        ] {
            let found = runs_of(text).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
        }
        let page = format!("<!doctype html>{}</html>", element(0, "{}"));
        assert!(runs_of(&page).unwrap_err().contains("not a lab result"));
    }
}
