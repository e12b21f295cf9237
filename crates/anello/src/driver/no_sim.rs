//! Types without values in place of the simulated kernels, for builds without the feature `sim`.

use std::convert::Infallible;
use std::task::Context;

use crate::driver::wake::queue::PollIo;

pub(super) type SimDatagramSocket = Infallible;
pub(super) type SimUnixDatagram = Infallible;

#[derive(Debug)]
pub(crate) enum SimSignal {}

impl SimSignal {
    pub fn poll_take(&self, _context: &Context<'_>) -> PollIo<()> {
        match *self {}
    }
}
