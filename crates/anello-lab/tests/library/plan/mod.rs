//! Tests for run planning: scenarios, cells, contenders and orders.

mod cell;
mod commit;
mod contender;
mod https;
mod instructions;
mod manifest;
mod overrides;
mod scenario;
mod schedule;
mod site;
