//! Tests of the plan of a run: scenarios, cells, contenders and orders.

mod cell;
mod commit;
mod contender;
#[path = "../common/git.rs"]
mod git;
mod https;
mod instructions;
mod scenario;
mod schedule;
