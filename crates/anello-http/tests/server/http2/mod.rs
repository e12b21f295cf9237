//! HTTP/2, with the client of the crate `h2`, on every driver.

mod faults;
mod files;
mod requests;
mod timeouts;

use std::net::SocketAddr;
use std::rc::Rc;

use anello_http::server::Http2Mode;
use anello_http::{Request, Response, ServerOptions};

use crate::common::http2::{Client, ClientResponse, HEADERS, PREFACE, complete, frame, read, request};
use crate::common::{self, with_long_timeouts};

fn options() -> ServerOptions {
    with_long_timeouts().http2(Http2Mode::Cleartext)
}

fn serve<H>(options: ServerOptions, handler: H) -> SocketAddr
where
    H: AsyncFn(Request) -> Response + 'static,
{
    common::serve(options, handler).1
}

/// Sets a flag when it is dropped.
struct OnDrop(Rc<std::cell::Cell<usize>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.update(|count| count + 1);
    }
}
