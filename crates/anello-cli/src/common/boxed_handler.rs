//! Handlers of the servers whose speed does not matter: `/metrics`, and the report of the lab.

use anello_http::{Request, Response};

/// Returns a handler of a type that all these servers share. The code of a connection is generic in the handler, and
/// compiling it takes seconds.
pub fn boxed_handler(respond: Box<dyn Fn(&Request) -> Response>) -> impl AsyncFn(Request) -> Response {
    async move |request: Request| respond(&request)
}
