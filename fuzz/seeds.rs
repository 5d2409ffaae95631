//! `fuzz_seeds DIRECTORY`: writes each property's seeds and dictionary for libFuzzer (`NAME/corpus/`,
//! `NAME/dictionary`), and prints the properties' names.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a script reads the names")]

use std::fs;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.ok_or_else(|| std::io::Error::other("usage: fuzz_seeds DIRECTORY"))?;
    for property in &millstream_properties::PROPERTIES {
        let corpus = directory.join(property.name).join("corpus");
        fs::create_dir_all(&corpus)?;
        for (number, seed) in (property.seeds)().iter().enumerate() {
            fs::write(corpus.join(format!("seed-{number}")), seed)?;
        }
        let word = |word: Vec<u8>| {
            let hex: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("\"{hex}\"\n")
        };
        let words: String = (property.dictionary)().into_iter().map(word).collect();
        fs::write(directory.join(property.name).join("dictionary"), words)?;
        println!("{}", property.name);
    }
    Ok(())
}
