//! The file server.

use std::rc::Rc;

use anello::JoinHandle;
use anello::net::{TcpListener, UnixListener};
use anello::server::GroupMember;
use anello_http::files::Files;
use anello_http::{Request, Server};

/// Serves `files` to the clients of both listeners, and on connections that other workers move to this worker. Returns the
/// tasks that accept connections.
pub fn serve(
    server: &Server,
    internet: Option<GroupMember<TcpListener>>,
    unix: Option<GroupMember<UnixListener>>,
    files: Files,
) -> Vec<JoinHandle<()>> {
    let files = Rc::new(files);
    let new_handler = || {
        let files = Rc::clone(&files);
        async move |request: Request| files.handle(&request).await
    };
    let internet = internet.map(|member| server.serve(member, new_handler()));
    let unix = unix.map(|member| server.serve(member, new_handler()));
    let moved = server.serve_moved(new_handler());
    internet.into_iter().chain(unix).chain([moved]).collect()
}
