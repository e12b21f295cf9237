//! Tests for the whole lab on a simulated machine: method, checks, reports, comparisons and stored results.

mod checked;
mod compare;
mod lab;
mod method;
mod report;
mod simulation;
mod stored;
mod whole;
