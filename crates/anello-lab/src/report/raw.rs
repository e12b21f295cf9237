//! Stored runs: the JSON of one run, compressed or not, or an HTML page with the compressed JSON of each of its runs.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::result::LabResult;
use crate::result::gzip::{compress, decompress, read_text};

/// Start of an element with the raw data of a run, up to the run number.
const ELEMENT: &str = "<script type=\"application/gzip\" id=\"raw";
const END: &str = "</script>";

const PAGE_END: &str = "</html>";

const TRUNCATED: &str = "raw data are truncated: the file is incomplete";

/// Returns the page element with the JSON of run number `run`: base64-encoded gzip, which needs no escaping in HTML.
pub(crate) fn element(run: usize, json: &str) -> String {
    // Writing to memory cannot fail.
    let packed = compress(json).unwrap_or_default();
    format!("{ELEMENT}{run}\">{}{END}", STANDARD.encode(packed))
}

/// Reads the runs in a file: one run from JSON, or all runs from a page written by the lab. The file may be compressed
/// with gzip.
///
/// # Errors
/// Returns an error with the path if the file cannot be read, or does not contain a result that this version can read.
pub fn read_runs(path: &Path) -> io::Result<Vec<LabResult>> {
    let read_error =
        |kind, cause: String| io::Error::new(kind, format!("cannot read {}: {cause}", path.display()));
    let text = read_text(path).map_err(|error| read_error(error.kind(), error.to_string()))?;
    runs_of(&text).map_err(|cause| read_error(io::ErrorKind::InvalidData, cause))
}

/// Parses the runs in `text`, which can have any format that [`read_runs`] accepts.
///
/// # Errors
/// Returns a description of the invalid part.
pub fn runs_of(text: &str) -> Result<Vec<LabResult>, String> {
    if !text.trim_start().starts_with('<') {
        return LabResult::from_json(text).map(|result| vec![result]).map_err(|error| error.to_string());
    }
    let elements: Vec<&str> = text.split(ELEMENT).skip(1).collect();
    let Some(last) = elements.last() else { return Err("page contains no raw data from a run".to_owned()) };
    // If the end of the page is missing, later runs may be missing too.
    if !last.contains(PAGE_END) {
        return Err(TRUNCATED.to_owned());
    }
    let run = |element: &str| {
        let (packed, _) =
            element.split_once('>').and_then(|(_, rest)| rest.split_once(END)).ok_or(TRUNCATED)?;
        let packed = STANDARD.decode(packed).map_err(|error| format!("raw data are damaged: {error}"))?;
        let json = decompress(&packed).map_err(|error| format!("raw data are damaged: {error}"))?;
        LabResult::from_json(&json).map_err(|error| error.to_string())
    };
    elements.into_iter().map(run).collect()
}
