//! Reading of stored results, with the analysis of checkpoints.

use crate::judge::analysis;
use crate::result::LabResult;

impl LabResult {
    /// Parses a result in the format of [`render_json`](crate::render_json). A checkpoint contains slices but no
    /// figures; they are computed here, so that the checkpoint of a crashed run reads like an interrupted run.
    ///
    /// # Errors
    /// Returns a description of the problem if the text is not JSON, has another schema or schema version, or contains
    /// an inconsistent result.
    pub fn from_json(text: &str) -> Result<LabResult, String> {
        let mut result = LabResult::as_written(text)?;
        if result.cells.is_empty() {
            analysis::analyse(&mut result);
        }
        Ok(result)
    }
}
