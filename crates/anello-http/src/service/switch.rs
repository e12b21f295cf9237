//! Switching a connection to another protocol from an `http` handler.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use send_wrapper::SendWrapper;

use crate::message::{Response, Upgraded};

/// An extension of a response with status 101 that switches the connection to another protocol, like
/// [`Response::upgrade`](crate::Response::upgrade). The response also gets the fields `Upgrade` and `Connection`.
///
/// A 101 response without this extension is replaced by 500. The extension must be created on the thread of the
/// connection, and has an effect only once.
///
/// ```
/// # anello::example! {
/// use anello_http::service::ProtocolSwitch;
/// use axum::http::StatusCode;
/// use axum::routing::get;
/// use axum::{Extension, Router};
///
#[doc = listener!()]
/// let echo = async || {
///     let switch = ProtocolSwitch::new("echo", async |mut upgraded| {
///         if let Ok(Some(bytes)) = upgraded.recv().await {
///             upgraded.write_all(&bytes).await.ok();
///         }
///     });
///     (StatusCode::SWITCHING_PROTOCOLS, Extension(switch))
/// };
/// anello_http::serve(listener, Router::new().route("/", get(echo))).detach();
/// let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
/// assert!(exchange(&format!("{head}ciao")).await?.ends_with("\r\n\r\nciao"));
/// # }
/// ```
#[derive(Clone)]
pub struct ProtocolSwitch(Arc<Shared>);

/// The response, until it has been sent. `Some` except in `drop`.
struct Shared(Option<SendWrapper<RefCell<Option<Response>>>>);

impl ProtocolSwitch {
    /// Creates the extension. `handler` then serves the connection; the conditions of
    /// [`Response::upgrade`](crate::Response::upgrade) apply.
    ///
    /// ```
    /// use anello_http::service::ProtocolSwitch;
    ///
    /// let mut response = http::Response::new(String::new());
    /// *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
    /// response.extensions_mut().insert(ProtocolSwitch::new("echo", async |mut upgraded| {
    ///     while let Ok(Some(bytes)) = upgraded.recv().await {
    ///         if upgraded.write_all(&bytes).await.is_err() {
    ///             break;
    ///         }
    ///     }
    /// }));
    /// ```
    pub fn new(protocol: impl Into<String>, handler: impl AsyncFnOnce(Upgraded) + 'static) -> Self {
        let response = Response::upgrade(protocol, handler);
        Self(Arc::new(Shared(Some(SendWrapper::new(RefCell::new(Some(response)))))))
    }

    /// Returns the response with which the connection switches, unless it has been used or belongs to another thread.
    pub(super) fn into_response(self) -> Option<Response> {
        let response = self.0.0.as_ref().filter(|response| response.valid())?;
        response.borrow_mut().take()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(response) = self.0.take()
            && !response.valid()
        {
            // A `SendWrapper` panics if it is dropped on another thread.
            std::mem::forget(response);
        }
    }
}

impl fmt::Debug for ProtocolSwitch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ProtocolSwitch").finish_non_exhaustive()
    }
}
