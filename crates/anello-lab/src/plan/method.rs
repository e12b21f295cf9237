//! Measurement method: the share of CPU time that servers get in saturated closed loops.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Measurement method in saturated closed loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Method {
    /// Servers are limited to a share of their cores, so that requests are always queued and the result shows the cost
    /// of a busy server.
    Saturated,
    /// Servers get whole cores. A server that is faster than the load generator waits for it.
    WholeCore,
}

impl Method {
    pub(crate) fn of_share(server_share: f64) -> Method {
        if server_share < 1.0 { Method::Saturated } else { Method::WholeCore }
    }
}

/// Name that is not a measurement method.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown method \"{0}\" (use saturated or whole-core)")]
pub struct UnknownMethod(String);

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Method, UnknownMethod> {
        let methods = [Method::Saturated, Method::WholeCore];
        methods
            .into_iter()
            .find(|method| method.to_string() == name)
            .ok_or_else(|| UnknownMethod(name.to_owned()))
    }
}
