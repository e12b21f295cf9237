//! Requests and responses, as handlers receive and return them.

mod body;
mod request;
mod response;

pub use body::{Body, BodyPart};
pub(crate) use body::{BodyKind, COPIED_BODY_BYTES, ChunkStream, MakeTrailers, StreamEnd};
pub(crate) use request::{BodySource, Peer, spare_head};
pub use request::{Request, RequestBody, RequestBodyError};
pub use response::{Response, Upgraded};
pub(crate) use response::{Upgrade, recycle_fields, spare_fields};
