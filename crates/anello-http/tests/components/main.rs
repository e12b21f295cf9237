//! Tests of the components through their public API: the protocol, the decisions about files, and observability.

mod files;
mod h1;
mod observe;
