//! A folder to be served, and tests on it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use anello_http::files::Files;
use anello_http::files::options::FileOptions;
use anello_http::{Request, ServerOptions};
use tempfile::TempDir;

use super::{for_each_driver, real_drivers, serve};

/// A folder with some of everything.
pub fn site() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("docs/empty")).expect("folders");
    fs::create_dir(at(".git")).expect("a folder");
    for (path, text) in [
        ("hello.txt", "Hello, world!"),
        ("index.html", "<title>top</title>"),
        ("docs/index.html", "<title>docs</title>"),
        ("docs/a b%20.txt", "blanks"),
        (".git/config", "secret"),
        ("404.html", "<title>lost</title>"),
        ("app.js", "let plain = 1;"),
        ("app.js.gz", "gzipped"),
        ("app.js.br", "brotli"),
    ] {
        fs::write(at(path), text).expect("a file");
    }
    fs::write(at("large.bin"), pattern(3 << 20)).expect("a file");
    folder
}

pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

pub fn start(root: &Path, options: FileOptions) -> SocketAddr {
    let files = Rc::new(Files::open(root, options).expect("a folder"));
    serve(ServerOptions::default(), async move |request: Request| files.handle(&request).await).1
}

/// Runs a test on each driver against a site of its own.
pub fn for_each_driver_with_site(
    options: FileOptions,
    test: impl AsyncFn(SocketAddr, &Path) + Clone + Send + Sync + 'static,
) {
    for_each_driver(real_drivers(), move |_| {
        let (options, test) = (options.clone(), test.clone());
        async move {
            let folder = site();
            let address = start(folder.path(), options);
            test(address, folder.path()).await;
        }
    });
}
