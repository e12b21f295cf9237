//! Tests of the components through their public API: the protocol, file serving, and observability.

mod files;
mod h1;
mod observe;
