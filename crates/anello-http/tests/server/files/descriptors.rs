//! File serving with a low open file limit, in a process of its own, because the limit applies to all of it.

use std::fs::{self, File};
use std::time::Duration;

use anello::time::sleep;
use anello_http::files::options::FileOptions;
use anello_test::in_own_process;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::Client;
use crate::common::site::for_each_driver_with_site;

/// Size of a file that is too large to be cached in memory.
const LARGE_BYTES: usize = 70_000;

const LIMIT: u64 = 128;

/// More files than the cache may keep open.
const FILES: usize = 200;

/// Time after which the cache revalidates every entry.
const REVALIDATED_AFTER: Duration = Duration::from_millis(1100);

/// Returns the files to which this process's open descriptors refer, without opening one.
fn open_files() -> Vec<String> {
    let targets =
        (0..LIMIT).filter_map(|descriptor| fs::read_link(format!("/proc/self/fd/{descriptor}")).ok());
    targets.map(|target| target.to_string_lossy().into_owned()).collect()
}

#[test]
fn cache_releases_descriptors_on_shortage_and_removal() {
    in_own_process(|| {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: limit.maximum })
            .expect("lower the limit");
        for_each_driver_with_site(FileOptions::default(), async |address, directory| {
            let path = |number: usize| format!("/large-{number}.bin");
            let file = |number| directory.join(&path(number)[1..]);
            for number in 0..FILES {
                fs::write(file(number), vec![0; LARGE_BYTES]).expect("write file");
            }
            let prefix = directory.join("large-");
            let prefix = prefix.to_str().expect("UTF-8 path");
            let count = || open_files().iter().filter(|target| target.starts_with(prefix)).count();
            let mut client = Client::connect(address).await;
            for number in 0..FILES {
                assert_eq!(client.get(&path(number)).await.status, 200, "{number}");
            }
            // Some descriptors of evicted entries may not be closed yet.
            while count() > LIMIT as usize / 4 {
                sleep(Duration::from_millis(5)).await;
            }
            assert!(count() > 0);

            // Open all remaining descriptors. The cache then closes its own descriptors to serve new requests.
            let open_others = || std::iter::from_fn(|| File::open("/dev/null").ok());
            let mut other_files: Vec<File> = open_others().collect();
            for target in ["/large-0.bin", "/large-1.bin", "/hello.txt", "/docs/"] {
                assert_eq!(client.get(target).await.status, 200, "{target}");
            }

            // In the first round, the cache closes the descriptors that it opened for the requests above. In the second
            // round, it has none left to close and serves the files that it holds in memory. Another round follows if a
            // thread of the file pool closed a descriptor after this test had opened the remaining ones.
            let inside = format!("{}/", directory.to_str().expect("UTF-8 path"));
            let is_served = || open_files().iter().any(|target| target.starts_with(&inside));
            let mut rounds = 0;
            while rounds < 2 || is_served() {
                other_files.extend(open_others());
                sleep(REVALIDATED_AFTER).await;
                for target in ["/hello.txt", "/docs/", "/hello.txt"] {
                    assert_eq!(client.get(target).await.status, 200, "{target}");
                }
                rounds += 1;
            }
            other_files.extend(open_others());
            assert_eq!(client.get("/large-2.bin").await.status, 503);
            drop(other_files);

            // The removed files are not requested again.
            for number in 0..FILES {
                fs::remove_file(file(number)).expect("remove file");
            }
            while count() > 0 {
                sleep(Duration::from_millis(5)).await;
            }
        });
    });
}
