//! A document root with test files, and a server for it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use anello_http::files::Files;
use anello_http::files::options::FileOptions;
use anello_http::{Request, ServerOptions};
use anello_test::{main_drivers, run_on_each};
use tempfile::TempDir;

use super::serve;
use super::versions::with_all_versions;

/// Creates a document root with directories, index files, a dotfile, precompressed files and a large file.
pub fn site() -> TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path_of = |path: &str| directory.path().join(path);
    fs::create_dir_all(path_of("docs/empty")).expect("create directories");
    fs::create_dir(path_of(".git")).expect("create directory");
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
        fs::write(path_of(path), text).expect("write file");
    }
    fs::write(path_of("large.bin"), pattern(3 << 20)).expect("write file");
    directory
}

/// Returns the content of a file of that length.
pub fn pattern(length: usize) -> Vec<u8> {
    anello_test::pattern(1, length)
}

pub fn start(root: &Path, options: FileOptions) -> SocketAddr {
    let files = Rc::new(Files::open(root, options).expect("open document root"));
    let server_options = with_all_versions(ServerOptions::default());
    serve(server_options, async move |request: Request| files.handle(&request).await).1
}

/// Runs a test on each available driver, each with its own [`site`].
pub fn for_each_driver_with_site(
    options: FileOptions,
    test: impl AsyncFn(SocketAddr, &Path) + Clone + Send + Sync + 'static,
) {
    run_on_each(main_drivers(), move |_| {
        let (options, test) = (options.clone(), test.clone());
        async move {
            let directory = site();
            let address = start(directory.path(), options);
            test(address, directory.path()).await;
        }
    });
}
