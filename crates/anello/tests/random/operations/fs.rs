//! Files, which wait only for the file pool and for the ring of io_uring.

use std::io::{IoSlice, IoSliceMut, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anello::fs::{self, AlignedBuf, File};

use super::Support::{Ring, Threads};
use super::{Kind, Support, alone, async_kind, checked, kind};
use crate::common::file_of;

pub fn kinds() -> Vec<Kind> {
    vec![
        cached("File::metadata", async |it| it.metadata().await),
        cached("File::sync_all", async |it| it.sync_all().await),
        cached("File::sync_data", async |it| it.sync_data().await),
        cached("File::set_len", async |it| it.set_len(4096).await),
        cached("File::allocate", async |it| it.allocate(0, 4096).await),
        cached("File::set_permissions", async |it| {
            it.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).await
        }),
        cached("File::set_times", async |it| it.set_times(std::fs::FileTimes::new()).await),
        cached("File::seek to the end", async |it| it.seek(std::io::SeekFrom::End(0)).await),
        cached("File::read_ahead", async |it| it.read_ahead(0, 8192).await),
        cached("File::read_to_end", async |it| it.read_to_end(&mut Vec::new()).await),
        cached("File::write and flush", async |it| {
            it.write(b"bytes").await?;
            it.flush().await
        }),
        cached("File::write and try_clone", async |it| {
            it.write_all(b"bytes").await?;
            it.try_clone().await
        }),
        cached("File::write and into_std", async |it| {
            it.write_all(b"bytes").await?;
            it.clone().into_std().await
        }),
        direct(Ring, "File::read", async |it| it.read(&mut [0; 4096]).await),
        direct(Threads, "File::read_vectored", async |it| {
            it.read_vectored(&mut [IoSliceMut::new(&mut [0; 4096])]).await
        }),
        direct(Threads, "File::read_exact", async |it| {
            it.rewind().await?;
            it.read_exact(&mut [0; 4096]).await
        }),
        direct(Threads, "File::write", async |it| it.write(&[0; 4096]).await),
        direct(Threads, "File::write_vectored", async |it| {
            it.write_vectored(&[IoSlice::new(&[0; 4096])]).await
        }),
        direct(Threads, "File::read_at", async |it| it.read_at(&mut [0; 4096], 0).await),
        direct(Threads, "File::read_vectored_at", async |it| {
            it.read_vectored_at(&mut [IoSliceMut::new(&mut [0; 4096])], 0).await
        }),
        direct(Threads, "File::read_exact_at", async |it| it.read_exact_at(&mut [0; 4096], 0).await),
        direct(Ring, "File::read_owned_at", async |it| it.read_owned_at(AlignedBuf::new(4096), 0).await.0),
        direct(Ring, "File::write_at", async |it| it.write_at(&[0; 4096], 0).await),
        direct(Threads, "File::write_vectored_at", async |it| {
            it.write_vectored_at(&[IoSlice::new(&[0; 4096])], 0).await
        }),
        direct(Threads, "File::write_all_at", async |it| it.write_all_at(&[0; 4096], 0).await),
        direct(Ring, "File::write_owned_at", async |it| it.write_owned_at(AlignedBuf::new(4096), 0).await.0),
        named("File::open", async |it| File::open(it).await),
        named("File::create", async |it| File::create(it).await),
        named("fs::read", async |it| fs::read(it).await),
        named("fs::write", async |it| fs::write(it, b"bytes").await),
        named("fs::copy", async |it| fs::copy(&it, it.with_extension("copy")).await),
        named("fs::metadata", async |it| fs::metadata(it).await),
        named("fs::create_dir_all", async |it| fs::create_dir_all(it.with_extension("directory")).await),
        named("fs::remove_dir_all", async |it| {
            drop(fs::remove_dir_all(it.with_extension("removed")).await);
            Ok(())
        }),
        named("fs::read_dir", async |it| fs::read_dir(it.parent().unwrap()).await),
        async_kind("ReadDir::next_entry", Threads, async || {
            let directory = tempfile::tempdir().unwrap();
            let entries = fs::read_dir(directory.path()).await.unwrap();
            checked((entries, directory), async |it| it.next_entry().await, |_| {})
        }),
        async_kind("DirEntry::metadata", Threads, async || {
            let mut entries = fs::read_dir("/proc/self").await.unwrap();
            let entry = entries.next_entry().await.unwrap().expect("an entry");
            checked((entry, ()), async |it| it.metadata().await, |()| {})
        }),
        kind("fs::spawn_file_operation", Threads, || alone(async || fs::spawn_file_operation(|| ()).await)),
    ]
}

fn cached<R: 'static>(
    name: &'static str,
    perform: impl AsyncFn(&mut File) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Threads, move || checked((file_of(&[7; 8192]), ()), perform, |()| {}))
}

/// Returns an operation on a file that bypasses the page cache, if its file system supports this.
fn direct<R: 'static>(
    support: Support,
    name: &'static str,
    perform: impl AsyncFn(&mut File) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, support, move || {
        let named = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(named.path(), [7; 8192]).unwrap();
        let open = |flags| {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).custom_flags(flags).open(named.path())
        };
        let file = File::from(open(libc::O_DIRECT).or_else(|_| open(0)).unwrap());
        checked((file, ()), perform, |()| {})
    })
}

/// Returns an operation on the path of a file.
fn named<R: 'static>(
    name: &'static str,
    perform: impl AsyncFn(&mut PathBuf) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Threads, move || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        checked((path, directory), perform, |_| {})
    })
}
