//! Tries NVIDIA's own libnccl on a host without a GPU, beside an emulated driver: `nccl FILE`. Prints its version, and the
//! error of a connection, which gets as far as the library's use of the GPU.
#![allow(clippy::print_stdout, reason = "a report prints")]

use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use millstream_backend::collective::{Alone, Communicator};
use millstream_backend::{Backend, Cuda, Libraries, Survey};
use millstream_test_cuda::{Library, StandIn};

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args_os().nth(1).ok_or("name the file of the library")?;
    let stand_in = StandIn::whole()?.alone()?;
    let place = stand_in.library(Library::Nccl);
    fs::remove_file(&place)?;
    symlink(Path::new(&file).canonicalize()?, &place)?;

    let libraries = Libraries::of(stand_in.folder());
    let survey = Survey::of(&libraries);
    let found = survey.libraries.iter().find(|found| found.is_for_several).ok_or("no such library")?;
    println!("version {}", found.version.clone()?);
    let cuda = Cuda::new(&libraries, 0, Some(&stand_in.folder().join("images")))?;
    let communicator = Communicator::new(Alone, Duration::from_secs(60), None)?;
    match cuda.connect(&communicator) {
        Ok(_) => Err("connected without a GPU".into()),
        Err(error) => {
            println!("{error}");
            Ok(())
        }
    }
}
