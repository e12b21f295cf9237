//! Harness of the workspace's tests: set-ups of the runtime, a watchdog, test data and test servers.
//!
//! A test is written once against the public API and runs on each of its [set-ups](Setup): a driver and its options. By
//! default these are io_uring as this kernel has it, io_uring with the fewest features that the driver accepts, epoll,
//! and the simulated kernels. `ANELLO_TEST_SETUP` selects other set-ups: it is a regular expression that is searched in
//! their names, so that `.` selects all and `^epoll$` one. `ANELLO_TEST_SETUP=list` prints the names instead of running
//! tests. A test that fails prints the command that repeats it on the set-up on which it failed.
//!
//! Set-ups of io_uring are skipped, with a message, where io_uring is unavailable. No result depends on timing: the
//! watchdog only ends tests that hang.

#![forbid(unsafe_code)]

mod availability;
mod data;
mod on_event;
mod own_process;
mod panics_on_wake;
mod repeat;
mod run;
mod selection;
mod servers;
mod setup;
mod table;
mod watchdog;

pub use availability::is_uring_unavailable;
pub use data::{Rng, assert_same_bytes, pattern, seeds, short_or_long, variable};
pub use on_event::{OnEvent, panic_in_events};
pub use own_process::{OwnProcess, can_inject, command_for, in_own_process, is_own_process};
pub use panics_on_wake::PanicsOnWake;
pub use run::{
    driver_flags, each_available, on_both_drivers, on_each, on_each_borrowing, on_each_driver_flag,
    on_every_driver, on_every_driver_and_sim, run_on_each,
};
pub use selection::{all_drivers, main_drivers, main_drivers_and_sim, simulated_drivers};
pub use servers::{
    ANY_PORT, Request, answer, echo, http_response, serve_http, serve_on, tcp_server, unix_server,
};
pub use setup::Setup;
pub use table::{all_setups, both_drivers, both_drivers_and_sim, fallback_setups, setup_named, smallest};
pub use watchdog::{hang_timeout, scaled_timeout, wait_until, wait_until_refused, within};
