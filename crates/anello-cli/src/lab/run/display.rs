//! Progress bar and checkpoints of a run.

use std::path::{Path, PathBuf};

use anello_lab::{LabResult, Observer, Progress, checkpoint};
use indicatif::ProgressBar;

use crate::common::output::{print_stderr, progress_bar};

pub struct Display {
    pub bar: ProgressBar,
    directory: PathBuf,
    /// Whether a failure to write a checkpoint has been reported.
    save_error_reported: bool,
}

impl Display {
    pub fn new(directory: &Path) -> Self {
        let bar = progress_bar("{wide_bar} {percent}%  {elapsed} of about {duration}  {msg}");
        Self { bar, directory: directory.to_owned(), save_error_reported: false }
    }
}

impl Observer for Display {
    fn progress(&mut self, progress: Progress) {
        let bar = &self.bar;
        match progress {
            Progress::Begin { slices } => bar.set_length(slices as u64),
            Progress::Checking { contender, what } => {
                bar.set_message(format!("checking {contender}: {what}"))
            }
            Progress::Cell { cell, .. } => bar.set_message(cell.to_string()),
            Progress::Slices { done } => bar.set_position(done as u64),
            Progress::Failed(failure) => {
                let message = format!("{}: {} ({})", failure.contender, failure.what, failure.consequence);
                bar.suspend(|| print_stderr(message));
            }
            Progress::Analysis => bar.set_message("analyzing"),
            Progress::Checked(_) | Progress::Ready { .. } => {}
        }
    }

    fn checkpoint(&mut self, result: &LabResult) {
        // The error is reported once and the run continues, because writing the final reports can still succeed.
        if let Err(error) = checkpoint::save(result, &self.directory)
            && !std::mem::replace(&mut self.save_error_reported, true)
        {
            let message = format!("cannot save a checkpoint: {error} (the run cannot be resumed)");
            self.bar.suspend(|| print_stderr(message));
        }
    }
}
