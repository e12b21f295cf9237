//! Tests for the manifests in the documents. Cargo resolves each of them in a package of its own, as for a reader who has
//! copied it. That of the tutorial has the packages and features with which `examples/tutorial` is compiled.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anello_test::short_or_long;
use tempfile::TempDir;
use toml::Table;

use super::document::{Document, documents, repository};

/// A package next to a checkout of the repository.
struct Package {
    directory: TempDir,
}

impl Package {
    fn new(manifest: &Table) -> Self {
        let package = Self { directory: tempfile::tempdir().expect("directory") };
        symlink(repository(), package.directory.path().join("anello")).expect("link");
        fs::create_dir_all(package.path().join("src")).expect("directory");
        fs::write(package.path().join("Cargo.toml"), manifest.to_string()).expect("file");
        // The versions that are on this machine.
        fs::copy(repository().join("Cargo.lock"), package.path().join("Cargo.lock")).expect("file");
        package
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("package")
    }

    /// Compiles and tests the package. The build directory is kept, because compiling the dependencies takes a minute.
    fn test(&self) {
        let target = Path::new(env!("CARGO_BIN_EXE_anello")).ancestors().nth(2).expect("build directory");
        let arguments = ["test", "--offline", "--quiet", "--all-targets", "--target-dir"];
        let mut command = cargo(&self.path(), &arguments);
        let output = command.arg(target.join("manifests")).output().expect("cargo");
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{stdout}{stderr}");
    }
}

fn cargo(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(directory).args(arguments);
    command
}

/// Returns the packages, with their features, of which the package in this directory consists.
fn resolve(directory: &Path, flags: &[&str]) -> BTreeSet<String> {
    let tree = ["tree", "--offline", "--quiet", "--no-dedupe", "--prefix", "none", "--format", "{p} [{f}]"];
    let output = cargo(directory, &[&tree[..], flags].concat()).output().expect("cargo");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The directory of a package in the repository is in parentheses.
    let without_directory = |line: &str| match (line.find(" (/"), line.find(" [")) {
        (Some(start), Some(end)) => line[..start].to_owned() + &line[end..],
        _ => line.to_owned(),
    };
    text.lines().filter(|line| !line.is_empty()).map(without_directory).collect()
}

fn manifests_in(document: &Document) -> Vec<Table> {
    let blocks = document.blocks_in("toml");
    blocks.iter().map(|block| toml::from_str(block).expect("TOML")).filter(is_manifest).collect()
}

pub fn is_manifest(table: &Table) -> bool {
    ["package", "dependencies", "dev-dependencies"].iter().any(|key| table.contains_key(*key))
}

/// Returns the manifest of the tutorial after each chapter: a chapter replaces the tables that it contains.
fn tutorial() -> Vec<Table> {
    let mut chapters = documents();
    chapters.retain(|document| document.path.starts_with("docs/tutorial/"));
    chapters.sort_by(|one, other| one.path.cmp(&other.path));
    let mut manifest = Table::new();
    let mut after = Vec::new();
    for table in chapters.iter().flat_map(manifests_in) {
        manifest.extend(table);
        after.push(manifest.clone());
    }
    after
}

#[test]
fn manifest_of_tutorial_is_that_of_its_sources() {
    let manifests = tutorial();
    assert!(manifests.len() >= 3, "only {} manifests found", manifests.len());
    for manifest in &manifests {
        let package = Package::new(manifest);
        fs::write(package.path().join("src/lib.rs"), "").expect("file");
        resolve(&package.path(), &[]);
    }
    let package = Package::new(manifests.last().expect("manifests"));
    let sources = repository().join("examples/tutorial");
    for directory in ["src", "tests"] {
        copy(&sources.join(directory), &package.path().join(directory));
    }
    let (documented, compiled) =
        (resolve(&package.path(), &[]), resolve(&repository(), &["--locked", "--package", "tutorial"]));
    let only_in =
        |one: &BTreeSet<String>, other| one.difference(other).cloned().collect::<Vec<_>>().join(", ");
    assert_eq!(only_in(&documented, &compiled), "", "only in docs/tutorial");
    assert_eq!(only_in(&compiled, &documented), "", "only in examples/tutorial");
    if short_or_long(false, true) {
        package.test();
    }
}

#[test]
fn manifests_of_other_pages_are_those_of_their_programs() {
    let tutorial = tutorial().pop().expect("manifests");
    let mut found = 0;
    let mut pages = documents();
    pages.retain(|document| !document.path.starts_with("docs/tutorial/"));
    for document in pages {
        for mut manifest in manifests_in(&document) {
            found += 1;
            // A reader adds the dependencies to an existing package.
            if !manifest.contains_key("package") {
                manifest.insert("package".to_owned(), tutorial["package"].clone());
            }
            let dependencies = manifest["dependencies"].as_table().expect("table");
            for (name, value) in dependencies {
                let expected = tutorial["dependencies"].get(name);
                assert_eq!(Some(value), expected, "{}: {name} differs from the tutorial", document.path);
            }
            let package = Package::new(&manifest);
            let program = ["rust,no_run", "rust"].map(|language| document.blocks_in(language)).concat();
            let program = program.into_iter().find(|block| block.contains("fn main()"));
            fs::write(package.path().join("src/main.rs"), program.expect("program")).expect("file");
            resolve(&package.path(), &[]);
            if short_or_long(false, true) {
                package.test();
            }
        }
    }
    assert!(found >= 2, "only {found} manifests found");
}

/// The other tests compile `anello-http` with its feature `axum`, which its own tests need.
#[test]
fn package_without_feature_cannot_serve_routers() {
    let mut manifest = tutorial().pop().expect("manifests");
    let dependencies = manifest["dependencies"].as_table_mut().expect("table");
    dependencies.retain(|name, _| matches!(name, "anello-http" | "axum"));
    dependencies["anello-http"].as_table_mut().expect("table").remove("features");
    manifest.remove("dev-dependencies");
    let package = Package::new(&manifest);
    fs::write(package.path().join("src/lib.rs"), WITHOUT_FEATURE).expect("file");
    let packages = resolve(&package.path(), &[]);
    assert!(packages.contains("anello-http v0.1.0 []"), "{packages:?}");
    if short_or_long(false, true) {
        package.test();
    }
}

const WITHOUT_FEATURE: &str = r#"
#[test]
#[should_panic(expected = "the feature `axum` of anello-http is off")]
fn router_is_rejected() {
    drop(anello_http::service::handler(axum::Router::<()>::new()));
}
"#;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    for entry in fs::read_dir(from).expect("directory") {
        let from = entry.expect("entry").path();
        let to = to.join(from.file_name().expect("name"));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).expect("file");
        }
    }
}
