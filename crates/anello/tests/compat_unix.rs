//! Foreign traits and hyper on Unix sockets.

mod common;

#[path = "common/unix.rs"]
mod family;
#[path = "common/http.rs"]
mod http;
#[path = "common/worlds.rs"]
mod worlds;
