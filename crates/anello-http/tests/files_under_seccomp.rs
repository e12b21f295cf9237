//! Files where a seccomp profile refuses a call that it does not know, as older container runtimes do, on every driver
//! that can be had.

mod common;

use std::collections::BTreeMap;
use std::env;
use std::os::unix::fs::symlink;

use anello_http::files::options::FileOptions;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use common::Client;
use common::site::for_each_driver_with_site;

/// Refuses one system call with EPERM, from here on, to this thread and those that it starts. An error where the kernel
/// has no filters.
fn refuse(call: i64) -> seccompiler::Result<()> {
    let refused = BTreeMap::from([(call, Vec::new())]);
    let eperm = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let machine = env::consts::ARCH.try_into().expect("a machine that filters know");
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, eperm, machine).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    apply_filter(&program)
}

/// Each name is opened by itself then: all is served but what lies behind symbolic links, and nothing from outside.
#[test]
fn fault_32_and_33_without_openat2_files_are_served_and_links_are_not() {
    if let Err(error) = refuse(libc::SYS_openat2) {
        return eprintln!("skipped: no system call can be refused here: {error}");
    }
    for_each_driver_with_site(FileOptions::default(), async |address, folder| {
        symlink("hello.txt", folder.join("link")).expect("a link");
        symlink("docs", folder.join("folder")).expect("a link");
        symlink("/etc", folder.join("outside")).expect("a link");
        let mut client = Client::connect(address).await;
        for (path, status) in [
            ("/hello.txt", 200),
            ("/docs/", 200),
            ("/docs/a%20b%2520.txt", 200),
            ("/docs", 301),
            ("/missing", 404),
            ("/docs/missing", 404),
            ("/link", 404),
            ("/folder/index.html", 404),
            ("/outside/passwd", 404),
        ] {
            assert_eq!(client.get(path).await.status, status, "{path}");
        }
    });
}
