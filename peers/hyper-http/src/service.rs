//! The service: a function that responds from memory, echoes the request body or streams a body.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Either, Full};
use serde::Serialize;

/// A tenth of the body of `/stream`.
static CHUNK: [u8; 10 * 1024] = [b'x'; 10 * 1024];

#[derive(Serialize)]
struct Message {
    message: &'static str,
}

/// A streamed body with this number of chunks left.
pub struct Chunks(u32);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(left) = self.0.checked_sub(1) else { return Poll::Ready(None) };
        self.0 = left;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&CHUNK)))))
    }
}

pub type ResponseBody = Either<Full<Bytes>, Chunks>;

pub async fn respond<B: Body>(request: Request<B>) -> Result<Response<ResponseBody>, B::Error> {
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/fixed") => full(Bytes::from_static(b"Hello, World!"), "text/plain"),
        (&Method::GET, "/json") => {
            let text = serde_json::to_vec(&Message { message: "Hello, World!" });
            full(text.expect("a struct of strings").into(), "application/json")
        }
        (&Method::POST, "/echo") => {
            full(request.into_body().collect().await?.to_bytes(), "application/octet-stream")
        }
        (&Method::GET, "/stream") => Response::new(Either::Right(Chunks(10))),
        _ => {
            let mut response = Response::new(Either::Left(Full::default()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    })
}

fn full(bytes: Bytes, media_type: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(Either::Left(Full::new(bytes)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
