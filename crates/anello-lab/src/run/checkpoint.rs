//! Checkpoints: intermediate results on disk. An interrupted run loses only the current cell.
//!
//! A checkpoint atomically replaces the file at the path of the final result, so readers never see a partly written
//! file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::result::LabResult;
use crate::result::gzip::read_text;
use crate::run::replace::replace;

/// Writes the result to `directory`, which is created if necessary. Returns the path of the file.
///
/// # Errors
/// Returns an error with the path if an operation fails.
pub fn save(result: &LabResult, directory: &Path) -> io::Result<PathBuf> {
    let path = directory.join(format!("{}.json", result.file_stem()));
    // Compact format, because a checkpoint is written after every cell.
    let json = serde_json::to_vec(result)?;
    let written = fs::create_dir_all(directory).and_then(|()| replace(&path, &json));
    written
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))?;
    Ok(path)
}

/// Reads a result or a checkpoint, which may be compressed with gzip.
///
/// # Errors
/// Returns an error with the path if the file cannot be read, or is not a result that this version can read.
pub fn load(path: &Path) -> io::Result<LabResult> {
    let read_error =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()));
    let text = read_text(path).map_err(read_error)?;
    LabResult::as_written(&text)
        .map_err(|cause| read_error(io::Error::new(io::ErrorKind::InvalidData, cause)))
}
