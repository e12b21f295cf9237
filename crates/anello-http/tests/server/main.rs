//! Servers and their clients on every driver: HTTP/1.1, HTTP/2 (with the feature `http2`), TLS, files (compressed ones
//! with the feature `compression`), and services on the types of the crate `http`.

#![forbid(unsafe_code)]

mod common;
#[path = "../properties/mod.rs"]
mod properties;

mod aborted_connections;
mod bodies_in_tasks;
mod body_ownership;
mod connection_close;
mod deadlines;
mod drain;
mod eviction;
mod files;
mod foreign_wakers;
mod gone_clients;
#[cfg(feature = "http2")]
mod http2;
mod idle_connections;
mod observed;
mod rebalancing;
mod rejections;
mod requests;
mod resources;
mod service;
mod slow_clients;
mod tls;
mod tls_streams;
