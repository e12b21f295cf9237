//! What a run has so far, on disk, so that nothing but the cell under way is lost if it ends.
//!
//! The file is the one that the finished result goes to. It is replaced whole, so that whoever looks finds a result: an
//! old one or a new one, whenever the run, the disk or the power ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::replace::replace;
use crate::report::file_stem;
use crate::result::LabResult;

/// Writes what there is into `directory`, made if it does not exist. Returns the path.
///
/// # Errors
/// Which path could not be written, and why.
pub fn save(result: &LabResult, directory: &Path) -> io::Result<PathBuf> {
    let path = directory.join(format!("{}.json", file_stem(result)));
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()));
    fs::create_dir_all(directory).map_err(failed)?;
    // Compact: it is written after every cell.
    replace(&path, &serde_json::to_vec(result)?).map_err(failed)?;
    Ok(path)
}

/// Reads a result or a checkpoint.
///
/// # Errors
/// The file cannot be read, or is no result of this version; the text names the file.
pub fn load(path: &Path) -> io::Result<LabResult> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(named)?;
    LabResult::as_written(&text).map_err(|why| named(io::Error::new(io::ErrorKind::InvalidData, why)))
}
