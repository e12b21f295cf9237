//! View of a lab run on the whole terminal.
//!
//! The load runs on the thread that draws, and on its core. A frame is therefore drawn only between two slices, when no
//! request is in flight.

mod draw;
mod state;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anello_lab::result::Slice;
use anello_lab::{LabConfig, Progress};

use self::state::LabState;
use crate::common::terminal::Screen;

pub struct View {
    screen: Screen,
    state: LabState,
    stop: Arc<AtomicBool>,
}

impl View {
    /// `measured` are the slices of the run that is resumed.
    pub fn new(config: &LabConfig, measured: Vec<Slice>, stop: Arc<AtomicBool>) -> io::Result<Self> {
        Ok(Self { screen: Screen::enter()?, state: LabState::new(config, measured), stop })
    }

    pub fn update(&mut self, progress: &Progress) {
        self.state.update(progress);
        let has_quit = self.screen.typed().iter().any(|key| b"qQ".contains(key));
        if has_quit {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.state.is_stopping = self.stop.load(Ordering::Relaxed);
        let Self { screen, state, .. } = self;
        screen.draw(has_quit, |frame| draw::draw(state, frame));
    }
}
