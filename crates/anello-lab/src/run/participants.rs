//! Parts of a run that are provided by the caller.

use std::sync::atomic::AtomicBool;

use crate::plan::config::LabConfig;
use crate::run::load::Load;
use crate::run::machine::Machine;
use crate::run::progress::Observer;

pub(crate) struct Participants<'a> {
    pub(crate) config: &'a LabConfig,
    pub(crate) load: &'a mut dyn Load,
    pub(crate) machine: &'a mut dyn Machine,
    pub(crate) observer: &'a mut dyn Observer,
    pub(crate) stop: &'a AtomicBool,
}
