//! HTTP/1.1 and HTTP/2 server and static file server for the anello runtime.
//!
//! - [`Server`]: serves requests with a handler, an async function from [`Request`] to [`Response`].
//! - [`h1`]: the protocol, without I/O or a clock. Decodes requests and encodes responses.
//! - [`service`]: serves requests with a `tower::Service` on the types of the crate `http`, such as an axum application.
//! - [`files`]: static file serving, with path resolution, conditional requests, ranges, content encodings, media types
//!   and listings.
//! - [`observe`]: access log, metrics and health.
//!
//! Three features are off by default: `axum`, which [`service`] requires for routers of axum, `http2`, and `compression`
//! of files while they are sent.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("anello-http requires Linux: it uses io_uring and epoll (build for a Linux target)");

#[macro_use]
mod examples;
#[macro_use]
mod setters;

pub mod files;
pub mod h1;
mod message;
pub mod observe;
pub mod server;
pub mod service;
mod transport;

pub use message::{Body, BodyPart, Request, RequestBody, RequestBodyError, Response};
pub use server::{Server, ServerBuilder, ServerOptions};
pub use service::serve;

/// The examples in README.md and in the guides run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../../docs/guides/axum.md")]
#[doc = include_str!("../../../docs/guides/ecosystem.md")]
struct Readme;
