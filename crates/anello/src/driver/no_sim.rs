//! Types without values in place of the simulated kernels, for builds without the feature `sim`.

use std::convert::Infallible;

pub(super) type SimCompletionMachine = Infallible;
pub(super) type SimReadinessMachine = Infallible;
pub(super) type SimDatagramSocket = Infallible;
pub(super) type SimUnixDatagram = Infallible;
