//! Foreign traits and hyper on TCP.

mod common;

#[path = "common/tcp.rs"]
mod family;
#[path = "common/http.rs"]
mod http;
#[path = "common/worlds.rs"]
mod worlds;
