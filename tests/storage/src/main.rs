//! The test store as a program: `millstream-test-storage ADDRESS [BYTES_PER_SECOND [DIRECTORY]]`.
//!
//! Serves the files of DIRECTORY as the objects of a bucket `test`, until it is killed.

#![forbid(unsafe_code)]

use std::path::Path;

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
    let server = Server::start_at(address, Options { bytes_per_second, ..Options::default() }).await?;
    if let Some(directory) = rest.get(1) {
        put_all(&server, Path::new(directory), "test")?;
    }
    std::future::pending().await
}

/// Stores the files below `directory` as objects below `name`.
fn put_all(server: &Server, directory: &Path, name: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            put_all(server, &entry.path(), &name)?;
        } else {
            server.put(&name, std::fs::read(entry.path())?);
        }
    }
    Ok(())
}
