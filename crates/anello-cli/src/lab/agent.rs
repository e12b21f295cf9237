//! `anello lab agent`: one end of a run across hosts.

use std::io;

use anello_lab::LocalMachine;
use anello_lab::hosts::{Agent, Greeting};
use anello_lab::tls::Identity;
use clap::ValueEnum;

use super::disk_file::default_disk_file;
use super::load::{LabLoad, LoadDriver};
use super::run::launcher;
use crate::common::build_identity::LONG_VERSION;
use crate::common::error::invalid_input;

/// Run servers or the load generator for a lab on another host. `lab run` starts this command over ssh; it exits with
/// its servers when its standard input is closed.
pub fn run() -> io::Result<()> {
    if std::env::var_os("ANELLO_DRIVER").is_some() {
        return Err(invalid_input(
            "ANELLO_DRIVER overrides the drivers under comparison (unset it on this host)",
        ));
    }
    let Some((agent, mut setup)) = Agent::start(&Greeting::of_this_machine(LONG_VERSION))? else {
        return Ok(());
    };
    setup.config.startup.launcher = launcher()?;
    let driver = LoadDriver::from_str(&setup.load_driver, false).map_err(invalid_input)?;
    let identity = setup.identity.as_ref().map(Identity::from_pem).transpose()?;
    let load = LabLoad::new(driver, &default_disk_file())?;
    let mut load = load.with_identity(identity.as_ref(), &setup.config.cells);
    let driver = load.driver_name();
    agent.serve(&setup.config, &mut LocalMachine::new(identity), &mut load, &driver)
}
