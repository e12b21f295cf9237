//! Scenario files, and [`resolve`], which creates a [`LabConfig`] from a file and the [`Resources`] of a machine.

mod file;
mod resolve;
mod resources;

use std::path::PathBuf;

use crate::plan::config::LabConfig;

pub use file::ScenarioError;
pub use resolve::{drop_cells_over_limit, resolve};
pub use resources::Resources;

/// Name and text of every preset. The first one is the default.
pub const PRESETS: [(&str, &str); 19] = [
    ("quick", include_str!("../../../presets/quick.toml")),
    ("smoke", include_str!("../../../presets/smoke.toml")),
    ("frevib", include_str!("../../../presets/frevib.toml")),
    ("joakimthun", include_str!("../../../presets/joakimthun.toml")),
    ("monoio-peak", include_str!("../../../presets/monoio-peak.toml")),
    ("monoio-fixed", include_str!("../../../presets/monoio-fixed.toml")),
    ("few", include_str!("../../../presets/few.toml")),
    ("go-uring", include_str!("../../../presets/go-uring.toml")),
    ("models", include_str!("../../../presets/models.toml")),
    ("options", include_str!("../../../presets/options.toml")),
    ("large", include_str!("../../../presets/large.toml")),
    ("many", include_str!("../../../presets/many.toml")),
    ("aa", include_str!("../../../presets/aa.toml")),
    ("http", include_str!("../../../presets/http.toml")),
    ("files", include_str!("../../../presets/files.toml")),
    ("tls", include_str!("../../../presets/tls.toml")),
    ("chen622", include_str!("../../../presets/chen622.toml")),
    ("disk", include_str!("../../../presets/disk.toml")),
    ("idle", include_str!("../../../presets/idle.toml")),
];

/// Returns the text of the named preset.
pub fn preset(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(preset, _)| *preset == name).map(|(_, text)| *text)
}

impl LabConfig {
    /// Returns the named preset for this machine, without peers. `executable` is the `anello` command.
    ///
    /// # Errors
    /// Returns an error if no part of the preset can run on this machine.
    ///
    /// # Panics
    /// Panics if there is no preset with this name.
    pub fn preset(name: &str, executable: PathBuf) -> Result<LabConfig, ScenarioError> {
        let text = preset(name).unwrap_or_else(|| {
            let names = PRESETS.map(|(name, _)| name).join(", ");
            panic!("unknown preset \"{name}\" (choose one of {names})")
        });
        let resources = Resources::of_this_machine(executable, std::env::temp_dir().join("anello-lab.disk"));
        resolve(&format!("{name}.toml"), text, &resources)
    }
}
