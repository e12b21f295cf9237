//! File serving under a seccomp profile that denies unknown system calls, like the profiles of older container runtimes.
//! The test runs in a process of its own, because the threads that open files serve all runtimes of a process.

use std::collections::BTreeMap;
use std::env;
use std::os::unix::fs::symlink;

use anello_http::files::options::FileOptions;
use anello_test::in_own_process;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::common::Client;
use crate::common::site::for_each_driver_with_site;

/// Makes one system call fail with `EPERM` in this thread and in threads that it spawns.
///
/// # Errors
/// Returns an error if the kernel does not support seccomp filters.
fn deny_syscall(call: i64) -> seccompiler::Result<()> {
    let denied = BTreeMap::from([(call, Vec::new())]);
    let eperm = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let architecture = env::consts::ARCH.try_into().expect("supported architecture");
    let filter = SeccompFilter::new(denied, SeccompAction::Allow, eperm, architecture).expect("valid filter");
    let program: BpfProgram = filter.try_into().expect("compile filter");
    apply_filter(&program)
}

/// Without `openat2(2)`, each path component is opened separately. Files are served, except through symbolic links.
#[test]
fn fault_32_and_33_without_openat2_files_are_served_and_links_are_not() {
    in_own_process(|| {
        if let Err(error) = deny_syscall(libc::SYS_openat2) {
            return eprintln!("skipped: cannot install a seccomp filter: {error}");
        }
        for_each_driver_with_site(FileOptions::default(), async |address, directory| {
            symlink("hello.txt", directory.join("link")).expect("create link");
            symlink("docs", directory.join("folder")).expect("create link");
            symlink("/etc", directory.join("outside")).expect("create link");
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
    });
}
