//! Loss of unsynced changes to files when a simulated host crashes.
//!
//! `ANELLO_SEEDS` sets the number of seeds, if it is greater than the number that a test needs to see all outcomes.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anello::fs::{self, File, OpenOptions};
use anello::sim::{CrashLoss, Simulation};
use tempfile::TempDir;

use crate::common::variable;

fn seeds(min: u64) -> Range<u64> {
    0..variable("ANELLO_SEEDS").unwrap_or(min).max(min)
}

/// Runs a program on a host and crashes the host. Returns the directory of the program.
fn crash_after<F: Future<Output = io::Result<()>> + 'static>(
    seed: u64,
    loss: CrashLoss,
    program: impl Fn(PathBuf) -> F + 'static,
) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_owned();
    let mut sim = Simulation::builder().seed(seed).build();
    sim.host("a", move || program(path.clone()));
    sim.set_crash_loss("a", loss);
    sim.run_for(Duration::from_millis(10)).unwrap_or_else(|error| panic!("{error}"));
    sim.crash("a");
    sim.run_for(Duration::from_millis(1)).unwrap_or_else(|error| panic!("{error}"));
    directory
}

fn read(directory: &Path, name: &str) -> Option<Vec<u8>> {
    std::fs::read(directory.join(name)).ok()
}

async fn write_synced(path: &Path, content: &[u8]) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).await?;
    file.write_all(content).await?;
    file.sync_all().await?;
    Ok(file)
}

#[test]
fn unsynced_writes_survive_in_sectors() {
    let mut outcomes = BTreeSet::new();
    for seed in seeds(40) {
        let directory = crash_after(seed, CrashLoss::Data, async |path| {
            let file = write_synced(&path.join("file"), &[1; 2000]).await?;
            file.write_all_at(&[2; 2000], 1000).await
        });
        let content = read(directory.path(), "file").expect("a file");
        assert_eq!(content[..1000], [1; 1000], "seed {seed}: nothing was written there");
        assert!((2000..=3000).contains(&content.len()), "seed {seed}: {} bytes", content.len());
        for sector in content.chunks(512).skip(2) {
            // At the end of the previous contents, a sector can have new bytes before zeros.
            let kinds = sector.chunk_by(|one, other| one == other).count();
            assert!(kinds <= 2, "seed {seed}: {sector:?}");
        }
        let (is_all, is_nothing) = (content[1000..] == [2; 2000], content == [1; 2000]);
        outcomes.insert(if is_all {
            "all"
        } else if is_nothing {
            "nothing"
        } else {
            "a part"
        });
    }
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
}

#[test]
fn synced_changes_survive() {
    for seed in seeds(10) {
        let directory = crash_after(seed, CrashLoss::DataAndNames, async |path| {
            let file = write_synced(&path.join("file"), &[1; 2000]).await?;
            file.set_len(100).await?;
            file.sync_data().await?;
            File::open(&path).await?.sync_all().await?;
            let options = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).to_owned();
            options.open(path.join("file")).await?.write_all_at(&[3; 10], 100).await
        });
        let content = read(directory.path(), "file").expect("a file");
        assert_eq!(content, [[1; 100].as_slice(), &[3; 10]].concat(), "seed {seed}");
    }
}

#[test]
fn truncation_is_undone_with_its_contents() {
    let mut lengths = BTreeSet::new();
    for seed in seeds(20) {
        let directory = crash_after(seed, CrashLoss::Data, async |path| {
            write_synced(&path.join("file"), &[1; 2000]).await?;
            fs::write(path.join("file"), b"").await
        });
        let content = read(directory.path(), "file").expect("a file");
        assert!(content.iter().all(|byte| *byte == 1), "seed {seed}");
        lengths.insert(content.len());
    }
    assert!(lengths.contains(&0) && lengths.contains(&2000) && lengths.len() > 2, "{lengths:?}");
}

#[test]
fn rename_of_an_unsynced_file_is_found() {
    let replace = |syncs: bool| {
        move |path: PathBuf| async move {
            write_synced(&path.join("file"), b"old").await?;
            let file = File::create(path.join("new")).await?;
            file.write_all(b"new").await?;
            file.flush().await?;
            if syncs {
                file.sync_all().await?;
            }
            fs::rename(path.join("new"), path.join("file")).await
        }
    };
    let contents = |syncs, loss| {
        let content = |seed| read(crash_after(seed, loss, replace(syncs)).path(), "file");
        seeds(30).filter_map(content).collect::<BTreeSet<_>>()
    };
    assert_eq!(contents(true, CrashLoss::Data), BTreeSet::from([b"new".to_vec()]));
    assert!(contents(false, CrashLoss::Data).contains(b"".as_slice()), "the contents are lost");
    let with_names = contents(true, CrashLoss::DataAndNames);
    assert_eq!(with_names, BTreeSet::from([b"new".to_vec(), b"old".to_vec()]));
    assert_eq!(contents(false, CrashLoss::Nothing), BTreeSet::from([b"new".to_vec()]));
}

#[test]
fn names_are_lost_in_reverse_order_until_their_directory_is_synced() {
    let names = |syncs: bool, seed| {
        let directory = crash_after(seed, CrashLoss::DataAndNames, move |path| async move {
            fs::create_dir(path.join("directory")).await?;
            write_synced(&path.join("directory/inner"), b"inner").await?;
            fs::hard_link(path.join("directory/inner"), path.join("link")).await?;
            fs::rename(path.join("link"), path.join("renamed")).await?;
            fs::remove_file(path.join("renamed")).await?;
            if syncs {
                File::open(path.join("directory")).await?.sync_all().await?;
                File::open(&path).await?.sync_all().await?;
            }
            Ok(())
        });
        let has = |name: &str| directory.path().join(name).exists();
        if let Some(content) = read(directory.path(), "renamed") {
            assert_eq!(content, b"inner", "seed {seed}: the removed file has its contents again");
        }
        ["directory", "directory/inner", "link", "renamed"].map(has)
    };
    let outcomes: BTreeSet<_> = seeds(60).map(|seed| names(false, seed)).collect();
    let expected = [
        [false, false, false, false],
        [true, false, false, false],
        [true, true, false, false],
        [true, true, true, false],
        [true, true, false, true],
    ];
    assert_eq!(outcomes, BTreeSet::from(expected));
    for seed in seeds(10) {
        assert_eq!(names(true, seed), [true, true, false, false], "seed {seed}");
    }
}

#[test]
fn seed_determines_what_is_lost() {
    let run = |seed| {
        let directory = crash_after(seed, CrashLoss::Data, async |path| {
            for name in ["b", "a"] {
                fs::write(path.join(name), vec![7; 5000]).await?;
            }
            Ok(())
        });
        ["a", "b"].map(|name| read(directory.path(), name))
    };
    for seed in seeds(10) {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
