//! What a handler answers.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use crate::body::{Body, BodyKind};
use crate::h1::{EncodedResponse, FieldBlock, FieldName, InvalidField, is_value};
use crate::server::Upgraded;

/// The answer to a request.
///
/// `Date`, `Content-Length`, `Transfer-Encoding` and `Connection` are the server's: they follow from the request, the
/// status and the body.
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
    /// Fields that many responses share.
    pub(crate) shared: Option<Rc<FieldBlock>>,
    pub(crate) fields: FieldBlock,
    pub(crate) body: Body,
    pub(crate) closes: bool,
    pub(crate) upgrade: Option<Box<Upgrade>>,
}

/// Speaks another protocol until its end.
pub(crate) type UpgradeHandler = Box<dyn FnOnce(Upgraded) -> Pin<Box<dyn Future<Output = ()>>>>;

/// Another protocol: its name, and what speaks it; nothing where it is only named.
pub(crate) struct Upgrade {
    pub protocol: String,
    pub handler: Option<UpgradeHandler>,
}

impl Upgrade {
    /// Whether it is among these, one or more between commas. Case does not matter.
    pub fn is_among(&self, requested: &[u8]) -> bool {
        let is_asked = |name: &str| {
            requested
                .split(|&byte| byte == b',')
                .any(|one| one.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
        };
        self.protocol.split(',').all(|name| is_asked(name.trim_ascii()))
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Upgrade").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

impl Response {
    /// A response without fields and body. A status that is none of an answer (200 to 999) is sent as 500.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self {
            status,
            shared: None,
            fields: FieldBlock::default(),
            body: Body::empty(),
            closes: false,
            upgrade: None,
        }
    }

    /// `200 OK` with fields and a body that were encoded before.
    #[inline]
    #[must_use]
    pub fn encoded(answer: Rc<EncodedResponse>) -> Self {
        Self {
            shared: Some(Rc::clone(answer.fields())),
            body: Body(BodyKind::Encoded(answer)),
            ..Self::new(200)
        }
    }

    /// The answer that was encoded before, if this one still is that.
    #[inline]
    pub(crate) fn as_encoded(&self) -> Option<&EncodedResponse> {
        let (BodyKind::Encoded(framed), Some(shared)) = (&self.body.0, &self.shared) else { return None };
        let is_plain = self.status == 200 && !self.closes && self.fields.as_bytes().is_empty();
        (is_plain && Rc::ptr_eq(shared, framed.fields())).then_some(framed)
    }

    /// `101 Switching Protocols`: the client has asked for another protocol ([`Head::upgrade`](crate::h1::Head::upgrade)),
    /// which `handler` speaks from then on. What the client had sent behind its request comes first. A client that has not
    /// asked for this protocol is answered [`upgrade_required`](Self::upgrade_required) instead. A name that no field can
    /// have is sent as 500. Beside a body of which too much was not read, or it is not known how much
    /// ([`max_discarded_body_bytes`](crate::ServerOptions::max_discarded_body_bytes)), 413 is sent instead.
    ///
    /// It is dropped at whatever await point it waits at when the server ends before it does. No deadline of the server's
    /// counts for it, and that its client is gone it learns by what it receives and sends.
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
    #[must_use]
    pub fn upgrade(protocol: impl Into<String>, handler: impl AsyncFnOnce(Upgraded) + 'static) -> Self {
        let handler =
            Box::new(|upgraded| -> Pin<Box<dyn Future<Output = ()>>> { Box::pin(handler(upgraded)) });
        Self::new(101).with_upgrade(protocol.into(), Some(handler))
    }

    /// `426 Upgrade Required`: what is asked for is to be had by another protocol alone, or by one of several between
    /// commas, which `Upgrade` names. A name that no field can have is sent as 500.
    ///
    /// ```
    /// use anello_http::Response;
    ///
    /// assert_eq!(Response::upgrade_required("websocket").status(), 426);
    /// ```
    #[must_use]
    pub fn upgrade_required(protocol: impl Into<String>) -> Self {
        let text = "426 Upgrade Required: this is to be had by another protocol alone, which the field Upgrade names\n";
        Self::text(text).with_status(426).with_upgrade(protocol.into(), None)
    }

    /// With another protocol's name, which has to be one of a field.
    fn with_upgrade(mut self, protocol: String, handler: Option<UpgradeHandler>) -> Self {
        if protocol.is_empty() || !is_value(protocol.as_bytes()) {
            tracing::error!(
                protocol,
                "a handler's answer named a protocol that is none, and was sent as 500"
            );
            return Self::new(500);
        }
        self.upgrade = Some(Box::new(Upgrade { protocol, handler }));
        self
    }

    /// `200 OK` with plain text.
    #[must_use]
    pub fn text(text: impl Into<Body>) -> Self {
        Self::with_media_type(b"text/plain; charset=utf-8", text)
    }

    /// `200 OK` with HTML.
    #[must_use]
    pub fn html(text: impl Into<Body>) -> Self {
        Self::with_media_type(b"text/html; charset=utf-8", text)
    }

    /// `200 OK` with JSON, already written.
    #[must_use]
    pub fn json(text: impl Into<Body>) -> Self {
        Self::with_media_type(b"application/json", text)
    }

    fn with_media_type(media_type: &'static [u8], body: impl Into<Body>) -> Self {
        let response = Self::new(200).with_body(body);
        // The media types are the program's own.
        match response.field(FieldName::CONTENT_TYPE, media_type) {
            Ok(response) => response,
            Err(_) => Self::new(500),
        }
    }

    /// With another field.
    ///
    /// # Errors
    /// When the value has a control byte such as CR, LF or NUL.
    pub fn field(mut self, name: FieldName<'_>, value: &[u8]) -> Result<Self, InvalidField> {
        self.fields.push(name, value)?;
        Ok(self)
    }

    /// With fields that were encoded once for many responses; they come before the response's own.
    #[must_use]
    pub fn with_shared_fields(mut self, fields: Rc<FieldBlock>) -> Self {
        self.shared = Some(fields);
        self
    }

    /// With another status. One that is none of an answer (200 to 999) is sent as 500.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// With this body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Ends the connection with this response.
    #[must_use]
    pub fn with_connection_close(mut self) -> Self {
        self.closes = true;
        self
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &Body {
        &self.body
    }
}
