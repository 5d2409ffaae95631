//! Prints the resources that each CUDA kernel uses, as NVIDIA's compiler reports them. Needs neither a GPU nor a
//! driver.
//!
//! ```text
//! cargo run --release -p millstream-backend --example kernels -- [--libraries FOLDER] [CAPABILITY...]
//! ```
//!
//! Capabilities are `10 * major + minor`; 80, 90, 100 and 120 if none is given. `--libraries` is the directory of
//! `libnvrtc.so`, if it is not on the system's search path. Prints one line per kernel and capability, and fails if
//! a kernel spills registers.

#![allow(clippy::print_stdout, reason = "a report prints")]

use std::error::Error;
use std::path::Path;

use millstream_backend::{Cuda, Libraries};

/// A100, H100, B200, and the RTX PRO 6000.
const CAPABILITIES: [u32; 4] = [80, 90, 100, 120];

fn main() -> Result<(), Box<dyn Error>> {
    let (mut libraries, mut capabilities) = (Libraries::default(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--libraries" => {
                let folder = arguments.next().ok_or("--libraries takes a folder")?;
                libraries = Libraries::of(Path::new(&folder));
            }
            number => capabilities.push(number.parse()?),
        }
    }
    if capabilities.is_empty() {
        capabilities = CAPABILITIES.to_vec();
    }
    let number = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
    println!("architecture program kernel threads registers shared_bytes spilled_bytes");
    let mut spilled = 0;
    for capability in capabilities {
        for kernel in Cuda::resources(&libraries, capability)? {
            let (registers, spills) = (number(kernel.registers), number(kernel.spilled_bytes));
            let (architecture, program, name) = (&kernel.architecture, kernel.program, kernel.kernel);
            let (threads, shared) = (kernel.threads, kernel.shared_bytes);
            println!("{architecture} {program} {name} {threads} {registers} {shared} {spills}");
            spilled += u32::from(kernel.spilled_bytes != Some(0));
        }
    }
    match spilled {
        0 => Ok(()),
        count => Err(format!("{count} kernels spill registers, or have no report").into()),
    }
}
