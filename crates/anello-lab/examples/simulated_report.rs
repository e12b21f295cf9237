//! Writes the reports for a simulated run, to show their format without a real run.
//!
//! Usage: `cargo run -p anello-lab --example simulated_report -- DIRECTORY`
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anello_lab::simulation::{Fault, Noise, SimulatedServer, Simulation};
use anello_lab::{LabConfig, render_table, run, write_reports};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = PathBuf::from(std::env::args().nth(1).ok_or("usage: simulated_report DIRECTORY")?);
    let servers = [
        ("anello io_uring", SimulatedServer::costing(5_600.0)),
        ("anello epoll", SimulatedServer::costing(6_020.0)),
        ("bare io_uring", SimulatedServer::costing(5_520.0)),
        ("bare epoll", SimulatedServer::costing(6_000.0).with_fault(Fault::DiesOnce(40))),
        ("bare epoll again", SimulatedServer::costing(6_000.0)),
        ("bare threads", SimulatedServer::costing(8_100.0)),
        ("bare poll", SimulatedServer::costing(6_300.0).with_cpu_ns_per_connection(9.0)),
        ("bare select", SimulatedServer::costing(6_400.0).with_fault(Fault::WrongBytesFrom(1024))),
    ];
    let simulation = Simulation::new(7, Noise::USUAL, &servers);
    let config = LabConfig::quick(PathBuf::from("anello"));
    let stop = AtomicBool::new(false);
    let result = run(&config, &mut simulation.load(), &mut simulation.machine(), &mut |_| {}, &stop)?;
    print!("{}", render_table(&result));
    let paths = write_reports(&result, &directory)?;
    println!("{}\n{}", paths.json.display(), paths.html.display());
    Ok(())
}
