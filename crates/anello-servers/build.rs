//! Build script: passes the optimization level of the servers to the build script of `anello-cli`, which reports it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=OPT_LEVEL={}", std::env::var("OPT_LEVEL").unwrap_or_default());
}
