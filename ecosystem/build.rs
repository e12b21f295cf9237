//! Generates the gRPC service of `proto/greeter.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/greeter.proto");
    let files = protox::compile(["greeter.proto"], ["proto"])?;
    tonic_prost_build::compile_fds(files)?;
    Ok(())
}
