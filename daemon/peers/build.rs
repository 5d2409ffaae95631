//! Compiles the protocol between daemons in pure Rust, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/peers.proto");
    let descriptors = protox::compile(["proto/peers.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
