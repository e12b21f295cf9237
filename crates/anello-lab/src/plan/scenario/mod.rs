//! Scenario files, and how they are resolved on a machine.
//!
//! ```text
//!  scenario file (TOML) ─► ScenarioFile ─┐
//!                          Resources ────┴─► resolve ─► LabConfig ─► run
//!                          (the machine)
//! ```

mod file;
mod presets;
mod resolve;
mod resources;

use std::path::PathBuf;

use thiserror::Error;

use crate::plan::config::LabConfig;

pub use file::ScenarioError;
pub use presets::{PRESETS, preset};
pub use resolve::{drop_cells_over_limit, resolve};
pub use resources::Resources;

/// Reason why a preset cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PresetError {
    /// There is no preset with this name.
    #[error("unknown preset \"{0}\" (choose one of {list})", list = PRESETS.map(|(name, _)| name).join(", "))]
    Unknown(String),
    /// No part of the preset can run on this machine.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

impl LabConfig {
    /// Returns the named preset for this machine, without peers. `executable` is the `anello` command.
    ///
    /// # Errors
    /// Returns an error if the preset does not exist, or if no part of it can run on this machine.
    pub fn preset(name: &str, executable: PathBuf) -> Result<LabConfig, PresetError> {
        let text = preset(name).ok_or_else(|| PresetError::Unknown(name.to_owned()))?;
        let resources = Resources::of_this_machine(executable, std::env::temp_dir().join("anello-lab.disk"));
        Ok(resolve(&format!("{name}.toml"), text, &resources)?)
    }

    /// Returns the `quick` preset, which takes about a minute: anello on both drivers and the baseline servers,
    /// with 1, 50 and 300 connections and messages of 128 and 1024 bytes. `executable` is the `anello` command.
    ///
    /// # Panics
    /// Panics if the embedded preset is invalid. A test verifies that it is valid.
    pub fn quick(executable: PathBuf) -> LabConfig {
        LabConfig::preset("quick", executable).expect("preset fits any machine")
    }

    /// Returns the `smoke` preset, which takes a few seconds. It shows that everything works, but its results are
    /// imprecise.
    ///
    /// # Panics
    /// Panics if the embedded preset is invalid. A test verifies that it is valid.
    pub fn smoke(executable: PathBuf) -> LabConfig {
        LabConfig::preset("smoke", executable).expect("preset fits any machine")
    }
}
