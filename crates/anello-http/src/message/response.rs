//! Responses, as handlers return them, and connections that have switched to another protocol.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use anello::log_event;
use bytes::Bytes;

use super::body::{Body, BodyKind};
use crate::h1::{EncodedResponse, FieldBlock, FieldName, InvalidField, elements, is_value};
use crate::transport::{PollSender, Receiver};

/// The response to a request.
///
/// The server adds `Date`, and also `Content-Length`, `Transfer-Encoding` and `Connection`, which are determined by the
/// request, the status and the body.
///
/// ```
/// use anello_http::Response;
/// use anello_http::h1::FieldName;
///
/// let response = Response::new(303).field(FieldName::LOCATION, b"/elsewhere")?;
/// assert_eq!(response.status(), 303);
/// let page = Response::html("<!doctype html><title>Ciao</title>");
/// assert_eq!(page.body().length(), Some(34));
/// # Ok::<(), anello_http::h1::InvalidField>(())
/// ```
#[derive(Debug)]
pub struct Response {
    pub(crate) status: u16,
    pub(crate) shared: Option<Rc<FieldBlock>>,
    pub(crate) fields: FieldBlock,
    pub(crate) body: Body,
    pub(crate) closes: bool,
    /// `true` if `fields` contains `Date`.
    pub(crate) has_date: bool,
    pub(crate) upgrade: Option<Box<Upgrade>>,
}

/// Maximum length of the unused field block kept by a thread.
const MAX_SPARE_BYTES: usize = 4 * 1024;

thread_local! {
    static SPARE_FIELDS: Cell<FieldBlock> = const { Cell::new(FieldBlock::empty()) };
}

/// Returns an empty field block that reuses the memory of an earlier response on this thread.
#[inline]
pub(crate) fn spare_fields() -> FieldBlock {
    SPARE_FIELDS.try_with(Cell::take).unwrap_or(FieldBlock::empty())
}

/// Keeps the memory of the fields of a response for a later response on this thread.
#[inline]
pub(crate) fn recycle_fields(mut fields: FieldBlock) {
    if (1..=MAX_SPARE_BYTES).contains(&fields.capacity()) {
        fields.clear();
        // A destructor at the end of the thread can drop a response after the memory has been freed.
        SPARE_FIELDS.try_with(|spare| spare.set(fields)).ok();
    }
}

pub(crate) type UpgradeHandler = Box<dyn FnOnce(Upgraded) -> Pin<Box<dyn Future<Output = ()>>>>;

/// A switch to another protocol. Without a handler, the protocol is only advertised.
pub(crate) struct Upgrade {
    pub protocol: String,
    pub handler: Option<UpgradeHandler>,
}

impl Upgrade {
    /// Returns `true` if `requested`, the client's comma-separated list, contains every protocol in `self`, ignoring
    /// case.
    pub fn is_among(&self, requested: &[u8]) -> bool {
        let is_requested =
            |name: &str| elements(requested).any(|element| element.eq_ignore_ascii_case(name.as_bytes()));
        self.protocol.split(',').all(|name| is_requested(name.trim_ascii()))
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Upgrade").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

impl Response {
    /// Creates a response without fields or a body. A status outside 200 to 999 is sent as 500.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// let response = Response::new(404);
    /// assert_eq!((response.status(), response.body().length()), (404, Some(0)));
    /// ```
    pub fn new(status: u16) -> Self {
        Self {
            status,
            shared: None,
            fields: FieldBlock::default(),
            body: Body::empty(),
            closes: false,
            has_date: false,
            upgrade: None,
        }
    }

    /// Creates a `200 OK` response from fields and a body that were encoded in advance.
    ///
    /// ```
    /// use std::rc::Rc;
    ///
    /// use anello_http::Response;
    /// use anello_http::h1::{EncodedResponse, FieldBlock};
    ///
    /// let encoded = Rc::new(EncodedResponse::new(FieldBlock::default(), b"ciao\n"));
    /// let response = Response::encoded(Rc::clone(&encoded));
    /// assert_eq!((response.status(), response.body().length()), (200, Some(5)));
    /// ```
    #[inline]
    pub fn encoded(response: Rc<EncodedResponse>) -> Self {
        Self {
            shared: Some(Rc::clone(response.fields())),
            body: Body(BodyKind::Encoded(response)),
            ..Self::new(200)
        }
    }

    /// Returns the encoded response, if it has been neither extended nor changed.
    #[inline]
    pub(crate) fn as_encoded(&self) -> Option<&EncodedResponse> {
        let (BodyKind::Encoded(encoded), Some(shared)) = (&self.body.0, &self.shared) else { return None };
        let is_plain = self.status == 200 && !self.closes && self.fields.as_bytes().is_empty();
        (is_plain && Rc::ptr_eq(shared, encoded.fields())).then_some(encoded)
    }

    /// Creates a `101 Switching Protocols` response to a client that requested another protocol
    /// ([`Head::upgrade`](crate::h1::Head::upgrade)). `handler` then serves the connection. The first bytes that the
    /// handler receives are those that the client sent after its request.
    ///
    /// Another response is sent instead in these cases:
    /// - [`upgrade_required`](Self::upgrade_required), if the client did not request this protocol
    /// - 500, if `protocol` is not a valid field value
    /// - 413, if the unread rest of the request body is longer than
    ///   [`max_discarded_body_bytes`](crate::ServerOptions::max_discarded_body_bytes) or its length is unknown
    ///
    /// If the server shuts down first, the handler's future is dropped at its current await point. The server's
    /// timeouts do not apply to the handler, and the handler notices a disconnected client only when it receives or
    /// sends.
    ///
    /// ```
    /// use anello_http::{Request, Response};
    ///
    /// async fn handler(request: Request) -> Response {
    ///     if request.upgrade() != Some("echo") {
    ///         return Response::upgrade_required("echo");
    ///     }
    ///     Response::upgrade("echo", async |mut upgraded| {
    ///         while let Ok(Some(bytes)) = upgraded.recv().await {
    ///             if upgraded.write_all(&bytes).await.is_err() {
    ///                 break;
    ///             }
    ///         }
    ///     })
    /// }
    /// # let _ = handler;
    /// ```
    pub fn upgrade(protocol: impl Into<String>, handler: impl AsyncFnOnce(Upgraded) + 'static) -> Self {
        let handler =
            Box::new(|upgraded| -> Pin<Box<dyn Future<Output = ()>>> { Box::pin(handler(upgraded)) });
        Self::new(101).with_upgrade(protocol.into(), Some(handler))
    }

    /// Creates a `426 Upgrade Required` response, which names one or more comma-separated protocols in the `Upgrade`
    /// field. If `protocol` is not a valid field value, 500 is sent instead.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// assert_eq!(Response::upgrade_required("websocket").status(), 426);
    /// ```
    pub fn upgrade_required(protocol: impl Into<String>) -> Self {
        let text = "426 Upgrade Required: use the protocol named in the Upgrade field\n";
        Self::text(text).with_status(426).with_upgrade(protocol.into(), None)
    }

    pub(crate) fn with_upgrade(mut self, protocol: String, handler: Option<UpgradeHandler>) -> Self {
        if protocol.is_empty() || !is_value(protocol.as_bytes()) {
            log_event!(ERROR, protocol, "a handler returned an invalid upgrade protocol; sending 500");
            return Self::new(500);
        }
        self.upgrade = Some(Box::new(Upgrade { protocol, handler }));
        self
    }

    /// Creates a `200 OK` response with plain text.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// assert_eq!(Response::text("ciao\n").body().length(), Some(5));
    /// ```
    pub fn text(text: impl Into<Body>) -> Self {
        Self::with_media_type(b"text/plain; charset=utf-8", text)
    }

    /// Creates a `200 OK` response with HTML.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// let page = String::from("<!doctype html><title>Ciao</title>");
    /// assert_eq!(Response::html(page).body().length(), Some(34));
    /// ```
    pub fn html(text: impl Into<Body>) -> Self {
        Self::with_media_type(b"text/html; charset=utf-8", text)
    }

    /// Creates a `200 OK` response with serialized JSON.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// let text = serde_json::json!({ "answer": 42 }).to_string();
    /// assert_eq!(Response::json(text).body().length(), Some(13));
    /// ```
    pub fn json(text: impl Into<Body>) -> Self {
        Self::with_media_type(b"application/json", text)
    }

    fn with_media_type(media_type: &'static [u8], body: impl Into<Body>) -> Self {
        Self::new(200).with_body(body).with_valid_field(FieldName::CONTENT_TYPE, media_type)
    }

    /// Adds a field.
    ///
    /// ```
    /// use anello_http::Response;
    /// use anello_http::h1::FieldName;
    ///
    /// let response = Response::text("ciao").field(FieldName::CACHE_CONTROL, b"no-store")?;
    /// assert!(response.field(FieldName::LOCATION, b"/a\r\nSet-Cookie: b").is_err());
    /// # Ok::<(), anello_http::h1::InvalidField>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`InvalidField::Value`] if the value contains a control byte such as CR, LF or NUL.
    pub fn field(mut self, name: FieldName<'_>, value: &[u8]) -> Result<Self, InvalidField> {
        if self.fields.capacity() == 0 {
            self.fields = spare_fields();
        }
        self.fields.push(name, value)?;
        Ok(self)
    }

    /// Adds a field whose value comes from the server or has been validated. Returns a 500 response if the value is
    /// invalid.
    pub(crate) fn with_valid_field(self, name: FieldName<'_>, value: &[u8]) -> Self {
        self.field(name, value).unwrap_or_else(|invalid| {
            log_event!(ERROR, %invalid, "cannot build response: invalid header field; sending 500");
            Self::new(500)
        })
    }

    /// Sets fields that were encoded once for many responses. They are sent before the response's own fields.
    ///
    /// ```
    /// # anello::example! {
    /// use std::rc::Rc;
    ///
    /// use anello_http::h1::{FieldBlock, FieldName};
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let mut fields = FieldBlock::default();
    /// fields.push(FieldName::SERVER, b"example").expect("the value is valid");
    /// let fields = Rc::new(fields);
    /// let handler = async move |_: Request| Response::text("ciao").with_shared_fields(Rc::clone(&fields));
    /// Server::builder().build().serve(listener, handler).detach();
    /// assert!(exchange("GET / HTTP/1.0\r\n\r\n").await?.contains("\r\nServer: example\r\n"));
    /// # }
    /// ```
    #[must_use]
    pub fn with_shared_fields(mut self, fields: Rc<FieldBlock>) -> Self {
        self.shared = Some(fields);
        self
    }

    /// Sets the status. A status outside 200 to 999 is sent as 500.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// let response = Response::text("try again later\n").with_status(503);
    /// assert_eq!(response.status(), 503);
    /// ```
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Sets the body.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// let response = Response::new(404).with_body("not found\n");
    /// assert_eq!(response.body().length(), Some(10));
    /// ```
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Closes the connection after this response.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |_: Request| Response::text("ciao").with_connection_close();
    /// Server::builder().build().serve(listener, handler).detach();
    /// let response = exchange("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await?;
    /// assert!(response.contains("\r\nConnection: close\r\n"));
    /// # }
    /// ```
    #[must_use]
    pub fn with_connection_close(mut self) -> Self {
        self.closes = true;
        self
    }

    /// Returns the status.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// assert_eq!(Response::text("ciao").status(), 200);
    /// ```
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the body.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// assert_eq!(Response::text("ciao").body().length(), Some(4));
    /// ```
    pub fn body(&self) -> &Body {
        &self.body
    }
}

type PollReceive = dyn FnMut(&mut Context<'_>) -> Poll<io::Result<Option<Bytes>>>;

/// A connection that has switched to another protocol; see [`Response::upgrade`](crate::Response::upgrade).
///
/// The server applies no timeouts to it. It is closed when dropped. Its methods return an error if the connection
/// fails.
///
/// ```
/// # anello::example! {
/// use anello_http::{Request, Response, Server};
///
#[doc = listener!()]
/// let handler = async |_: Request| {
///     Response::upgrade("echo", async |mut upgraded| {
///         if let Ok(Some(bytes)) = upgraded.recv().await {
///             upgraded.write_all(&bytes).await.ok();
///         }
///     })
/// };
/// Server::builder().build().serve(listener, handler).detach();
/// let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
/// assert!(exchange(&format!("{head}ciao")).await?.ends_with("\r\n\r\nciao"));
/// # }
/// ```
pub struct Upgraded {
    poll_receive: Box<PollReceive>,
    sender: Box<dyn PollSender>,
    /// Data received after the request, before the upgrade.
    buffered: Bytes,
}

impl Upgraded {
    pub(crate) fn new(mut receiver: impl Receiver, sender: impl PollSender, buffered: Vec<u8>) -> Self {
        let poll_receive = Box::new(move |context: &mut Context<'_>| {
            let chunk = ready!(receiver.poll_receive(context))?;
            Poll::Ready(Ok(chunk.map(|chunk| Bytes::copy_from_slice(&chunk))))
        });
        Self { poll_receive, sender: Box::new(sender), buffered: buffered.into() }
    }

    /// Waits for data. Returns `None` at EOF. Cancel-safe: no data is lost.
    ///
    /// ```
    /// # anello::example! {
    #[doc = upgraded!()]
    /// let handler = async |mut upgraded: Upgraded| {
    ///     // Data that the client has sent together with its request comes first.
    ///     if let Ok(Some(bytes)) = upgraded.recv().await {
    ///         upgraded.write_all(&bytes).await.ok();
    ///     }
    /// };
    /// let response = run(handler).await?;
    /// assert!(response.ends_with("\r\n\r\nciao"));
    /// # }
    /// ```
    pub async fn recv(&mut self) -> io::Result<Option<Bytes>> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Polls for data, like [`recv`](Self::recv).
    ///
    /// ```
    /// # anello::example! {
    #[doc = upgraded!()]
    /// let handler = async |mut upgraded: Upgraded| {
    ///     let received = std::future::poll_fn(|context| upgraded.poll_recv(context)).await;
    ///     if let Ok(Some(bytes)) = received {
    ///         upgraded.write_all(&bytes).await.ok();
    ///     }
    /// };
    /// let response = run(handler).await?;
    /// assert!(response.ends_with("\r\n\r\nciao"));
    /// # }
    /// ```
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if !self.buffered.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.buffered))));
        }
        (self.poll_receive)(context)
    }

    /// Copies as many of `bytes` as fit into the send buffer and returns the number of bytes copied.
    ///
    /// Under TLS, some of the bytes may be held back until the next call if the client reads slowly: call
    /// [`flush`](Self::flush) before waiting for anything else. After [`write_all`](Self::write_all) this is not
    /// needed. Cancel-safe: if the future is dropped, no data has been accepted.
    ///
    /// ```
    /// # anello::example! {
    #[doc = upgraded!()]
    /// let handler = async |mut upgraded: Upgraded| {
    ///     let mut rest = &b"welcome"[..];
    ///     while let Ok(count @ 1..) = upgraded.write(rest).await {
    ///         rest = &rest[count..];
    ///         if rest.is_empty() {
    ///             break;
    ///         }
    ///     }
    ///     upgraded.flush().await.ok();
    /// };
    /// let response = run(handler).await?;
    /// assert!(response.ends_with("\r\n\r\nwelcome"));
    /// # }
    /// ```
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.sender.poll_write(bytes, context)).await
    }

    /// Copies all of `bytes` into the send buffer, waiting for space as needed. Not cancel-safe: if the future is
    /// dropped, it is unknown how many bytes were accepted.
    ///
    /// ```
    /// # anello::example! {
    #[doc = upgraded!()]
    /// let handler = async |mut upgraded: Upgraded| {
    ///     upgraded.write_all(b"welcome").await.ok();
    /// };
    /// let response = run(handler).await?;
    /// assert!(response.ends_with("\r\n\r\nwelcome"));
    /// # }
    /// ```
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.write(bytes).await?;
            bytes = &bytes[count..];
        }
        // Pass held-back data to the socket, because the caller may then wait indefinitely for another event.
        poll_fn(|context| self.sender.poll_drive(context)).await
    }

    /// Waits until the kernel has accepted all data. Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    #[doc = upgraded!()]
    /// let handler = async |mut upgraded: Upgraded| {
    ///     if upgraded.write_all(b"welcome").await.is_ok() {
    ///         upgraded.flush().await.ok();
    ///     }
    /// };
    /// let response = run(handler).await?;
    /// assert!(response.ends_with("\r\n\r\nwelcome"));
    /// # }
    /// ```
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.sender.poll_flush(context)).await
    }

    /// Sends all data, then shuts down the write half. Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    #[doc = upgraded!()]
    /// let handler = async |mut upgraded: Upgraded| {
    ///     upgraded.write_all(b"welcome").await.ok();
    ///     upgraded.shutdown().await.ok();
    ///     // The client can still send.
    ///     while let Ok(Some(_)) = upgraded.recv().await {}
    /// };
    /// let response = run(handler).await?;
    /// assert!(response.ends_with("\r\n\r\nwelcome"));
    /// # }
    /// ```
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|context| self.sender.poll_shutdown(context)).await
    }
}

impl fmt::Debug for Upgraded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Upgraded").finish_non_exhaustive()
    }
}
