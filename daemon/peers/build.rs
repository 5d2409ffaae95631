//! Compiles the protocol between daemons, and the used part of etcd's, in pure Rust, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/peers.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    let descriptors = protox::compile(["proto/etcd.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
