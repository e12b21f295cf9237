//! Files where the process may not open many, on every driver that can be had. In a program of its own: the limit is that of
//! the process.

mod common;

use std::fs::{self, File};
use std::time::Duration;

use anello::time::sleep;
use anello_http::files::options::FileOptions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use common::Client;
use common::site::for_each_driver_with_site;

/// Too large to be kept in memory.
const LARGE_BYTES: usize = 70_000;

const LIMIT: u64 = 256;

/// When every entry of the cache is to be looked at again.
const REVALIDATED_AFTER: Duration = Duration::from_millis(1100);

/// What the descriptors of this process lead to.
fn open_files() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").expect("descriptors");
    let targets = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.map(|target| target.to_string_lossy().into_owned()).collect()
}

#[test]
fn the_cache_leaves_descriptors_for_others_and_no_removed_file_on_its_disk() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum: limit.maximum })
        .expect("a lower limit");
    for_each_driver_with_site(FileOptions::default(), async |address, folder| {
        let path = |number: usize| format!("/large-{number}.bin");
        let file = |number| folder.join(&path(number)[1..]);
        for number in 0..400 {
            fs::write(file(number), vec![0; LARGE_BYTES]).expect("a file");
        }
        let in_folder = folder.join("large-");
        let in_folder = in_folder.to_str().expect("text");
        let count = || open_files().iter().filter(|target| target.starts_with(in_folder)).count();
        let mut client = Client::connect(address).await;
        for number in 0..400 {
            assert_eq!(client.get(&path(number)).await.status, 200, "{number}");
        }
        // Of those that were forgotten, some may be about to be closed.
        while count() > LIMIT as usize / 4 {
            sleep(Duration::from_millis(5)).await;
        }
        assert!(count() > 0);

        // Others take all that are left: those of the cache are closed for what is asked for now.
        let mut others = Vec::new();
        while let Ok(other) = File::open("/dev/null") {
            others.push(other);
        }
        for asked in ["/large-0.bin", "/large-1.bin", "/hello.txt", "/docs/"] {
            assert_eq!(client.get(asked).await.status, 200, "{asked}");
        }

        // The first time, those that the cache has opened since then are closed. Then there are none left, and what the
        // cache has in memory needs none.
        for _ in 0..2 {
            while let Ok(other) = File::open("/dev/null") {
                others.push(other);
            }
            sleep(REVALIDATED_AFTER).await;
            for asked in ["/hello.txt", "/docs/", "/hello.txt"] {
                assert_eq!(client.get(asked).await.status, 200, "{asked}");
            }
        }
        assert_eq!(client.get("/large-2.bin").await.status, 503);
        drop(others);

        // Nobody asks for them any more.
        for number in 0..400 {
            fs::remove_file(file(number)).expect("it is there");
        }
        while count() > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    });
}
