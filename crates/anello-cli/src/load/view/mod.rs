//! Progress of a load run: a view on the whole terminal, or a progress line on standard error.

mod draw;
mod line;
mod state;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anello_load::{Event, LoadConfig, PauseSwitch};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use self::line::ProgressLine;
use self::state::LoadState;
use super::flags::CommonFlags;
use crate::common::terminal::{self, Screen};

/// Returns whether the view is shown. Otherwise, the progress line is shown if standard error is a terminal.
pub fn is_wanted(flags: &CommonFlags) -> bool {
    !flags.no_tui && !flags.has_machine_output() && terminal::is_available()
}

pub enum Display {
    Line(ProgressLine),
    View(Box<View>),
}

impl Display {
    /// Creates the view if `has_view` is set, else the progress line.
    pub fn new(
        has_view: bool,
        load: &LoadConfig,
        stop: &Arc<AtomicBool>,
        pause: &PauseSwitch,
    ) -> io::Result<Self> {
        Ok(match has_view {
            true => Self::View(Box::new(View::new(load, Arc::clone(stop), pause.clone())?)),
            false => Self::Line(ProgressLine::new(load.requests)),
        })
    }

    pub fn update(&mut self, event: &Event<'_>) {
        match self {
            Self::Line(line) => line.update(event),
            Self::View(view) => view.update(event),
        }
    }

    /// Removes the progress from the terminal.
    pub fn finish(self) {
        if let Self::Line(line) = self {
            line.bar.finish_and_clear();
        }
    }
}

/// The view, which is drawn by the thread that coordinates the load.
pub struct View {
    screen: Screen,
    state: LoadState,
    stop: Arc<AtomicBool>,
    pause: PauseSwitch,
}

impl View {
    fn new(load: &LoadConfig, stop: Arc<AtomicBool>, pause: PauseSwitch) -> io::Result<Self> {
        leave_cores(&load.cores);
        Ok(Self { screen: Screen::enter()?, state: LoadState::new(load), stop, pause })
    }

    fn update(&mut self, event: &Event<'_>) {
        self.state.update(event);
        // Progress events arrive ten times per second.
        if !matches!(event, Event::Progress(_)) {
            return;
        }
        let typed = self.screen.typed();
        for key in &typed {
            match key {
                b'q' | b'Q' => self.stop.store(true, Ordering::Relaxed),
                b' ' if self.state.can_pause() => {
                    self.pause.set(!self.pause.is_paused());
                    self.state.set_paused(self.pause.is_paused());
                }
                _ => {}
            }
        }
        self.state.is_stopping = self.stop.load(Ordering::Relaxed);
        let Self { screen, state, .. } = self;
        screen.draw(!typed.is_empty(), |frame| draw::draw(state, frame));
    }
}

/// Keeps the calling thread off the cores of the load, if it may use others.
fn leave_cores(cores: &[usize]) {
    if let Ok(mut allowed) = sched_getaffinity(None) {
        cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| allowed.unset(core));
        if allowed.count() > 0 {
            sched_setaffinity(None, &allowed).ok();
        }
    }
}
