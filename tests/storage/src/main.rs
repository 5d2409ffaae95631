//! The test store as a program: `millstream-test-storage ADDRESS [BYTES_PER_SECOND [DIRECTORY]]`.
//!
//! Serves the files of DIRECTORY as the objects of a bucket `test`, until it is killed.

#![forbid(unsafe_code)]

use std::path::Path;

use bytes::Bytes;
use millstream_test_storage::{Options, Server};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, rest @ ..] = arguments.as_slice() else {
        return Err(std::io::Error::other(
            "usage: millstream-test-storage ADDRESS [BYTES_PER_SECOND [DIRECTORY]]",
        ));
    };
    let bytes_per_second = rest.first().and_then(|rate| rate.parse().ok()).filter(|&rate| rate > 0);
    let mut objects = Vec::new();
    if let Some(directory) = rest.get(1) {
        read_all(Path::new(directory), "test", &mut objects)?;
    }
    let _server =
        Server::start_with(address, Options { bytes_per_second, ..Options::default() }, objects).await?;
    std::future::pending().await
}

/// Reads the files below `directory` as objects below `name`.
fn read_all(directory: &Path, name: &str, objects: &mut Vec<(String, Bytes)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read_all(&entry.path(), &name, objects)?;
        } else {
            objects.push((name, std::fs::read(entry.path())?.into()));
        }
    }
    Ok(())
}
