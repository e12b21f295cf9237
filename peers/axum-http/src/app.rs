//! The application: fixed responses from memory, an echo of the request body, and a streamed body.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use serde::Serialize;

/// A tenth of the body of `/stream`.
static CHUNK: [u8; 10 * 1024] = [b'x'; 10 * 1024];

#[derive(Serialize)]
struct Message {
    message: &'static str,
}

pub fn router() -> Router {
    Router::new()
        .route("/fixed", get(async || ([(CONTENT_TYPE, "text/plain")], "Hello, World!")))
        .route("/json", get(async || Json(Message { message: "Hello, World!" })))
        .route("/echo", post(async |body: Bytes| body))
        .route("/stream", get(async || Body::from_stream(stream::iter((0..10).map(chunk)))))
}

fn chunk(_: u32) -> Result<Bytes, Infallible> {
    Ok(Bytes::from_static(&CHUNK))
}
