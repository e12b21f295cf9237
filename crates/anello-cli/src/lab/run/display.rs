//! Progress and checkpoints of a run.

use std::path::{Path, PathBuf};

use anello_lab::{LabResult, Observer, Progress, checkpoint};
use indicatif::ProgressBar;

use super::view::View;
use crate::common::output::{print_stderr, progress_bar};

pub struct Display {
    /// Hidden if there is a view.
    bar: ProgressBar,
    view: Option<Box<View>>,
    directory: PathBuf,
    /// Whether a failure to write a checkpoint has been reported.
    save_error_reported: bool,
}

impl Display {
    pub fn new(directory: &Path, view: Option<View>) -> Self {
        let bar = progress_bar("{wide_bar} {percent}%  {elapsed} of about {duration}  {msg}");
        let bar = if view.is_some() { ProgressBar::hidden() } else { bar };
        Self { bar, view: view.map(Box::new), directory: directory.to_owned(), save_error_reported: false }
    }

    /// Removes the progress from the terminal.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Display {
    fn progress(&mut self, progress: Progress) {
        if let Some(view) = &mut self.view {
            view.update(&progress);
        }
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
            _ => {}
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
