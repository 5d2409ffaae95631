//! Compiles and links the libraries once.
//!
//! `target/stand-in/HASH/`, named by the hash of the source, contains `source/`, `objects/`, the `kernels/` compiled by the
//! stand-in of NVRTC, and a folder for each requested variant. A folder appears under its name only when it is complete.
//! Meanwhile other processes wait for a file lock, which is released with its owner.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, io, thread};

use crate::source::{HEADERS, SHIM, units};
use crate::{Library, Variant};

const FLAGS: [&str; 7] =
    ["-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"];

/// The folder with a variant's libraries.
pub(crate) fn folder_of(variant: &Variant) -> io::Result<PathBuf> {
    let root = root()?;
    let folder = root.join(name_of(variant));
    if folder.exists() {
        return Ok(folder);
    }
    fs::create_dir_all(&root)?;
    let lock = File::create(root.join("lock"))?;
    lock.lock()?;
    if !folder.exists() {
        compile(&root)?;
        let made = root.join("made");
        remove(&made)?;
        link(&root, variant, &made)?;
        fs::rename(&made, &folder)?;
    }
    Ok(folder)
}

/// Copies the libraries of a folder; compiled kernels stay shared.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    remove(to)?;
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    symlink("../kernels", to.join("kernels"))
}

/// The folder for everything built from this source, in the target directory of the running test.
fn root() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    // <target>/<profile>/deps/<program>, or examples
    let programs =
        program.ancestors().find(|folder| folder.ends_with("deps") || folder.ends_with("examples"));
    let target = programs
        .and_then(|programs| programs.parent()?.parent())
        .ok_or_else(|| io::Error::other(format!("{} is in no target directory", program.display())))?;
    let mut hash = DefaultHasher::new();
    (SHIM, HEADERS, FLAGS, compiler()).hash(&mut hash);
    for library in Library::ALL {
        units(library).hash(&mut hash);
    }
    Ok(target.join("stand-in").join(format!("{:016x}", hash.finish())))
}

fn name_of(variant: &Variant) -> String {
    if *variant == Variant::default() {
        return "whole".to_owned();
    }
    let mut hash = DefaultHasher::new();
    format!("{variant:?}").hash(&mut hash);
    format!("variant-{:016x}", hash.finish())
}

fn compiler() -> String {
    env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".to_owned())
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output =
        command.output().map_err(|error| io::Error::other(format!("{command:?} does not run: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr))))
}

/// Compiles `objects/`, with one compiler per core.
fn compile(root: &Path) -> io::Result<()> {
    let (source, objects, made) = (root.join("source"), root.join("objects"), root.join("made-objects"));
    if objects.exists() {
        return Ok(());
    }
    remove(&made)?;
    fs::create_dir_all(&source)?;
    fs::create_dir_all(&made)?;
    fs::create_dir_all(root.join("kernels"))?;
    let all: Vec<_> = Library::ALL.iter().flat_map(|&library| units(library)).collect();
    for (name, text) in SHIM.iter().chain(HEADERS).chain(all.iter().copied()) {
        fs::write(source.join(name), text)?;
    }
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((name, _)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut command = Command::new(compiler());
                    command.args(FLAGS).arg("-c").arg(source.join(name)).arg("-o").arg(object(&made, name));
                    if let Err(error) = run(&mut command) {
                        *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => fs::rename(made, objects),
    }
}

fn object(folder: &Path, unit: &str) -> PathBuf {
    folder.join(unit).with_extension("o")
}

/// Links a variant's libraries into a folder. Functions that a library lacks are not exported.
fn link(root: &Path, variant: &Variant, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, text) in SHIM {
        fs::write(folder.join(name), text)?;
    }
    symlink("../kernels", folder.join("kernels"))?;
    for library in Library::ALL.into_iter().filter(|&library| variant.has(library)) {
        let name = variant.file_name(library);
        let version = folder.join("version.cpp");
        let exports = folder.join("exports");
        fs::write(
            &version,
            format!(
                "extern \"C\" {{ extern const int stand_in_version = {}; extern const bool \
                 stand_in_has_plain_products = {}; }}\n",
                variant.version(library),
                variant.has_plain_products()
            ),
        )?;
        let mut local: String = variant.lacks(library).map(|function| format!("{function}; ")).collect();
        local.insert_str(0, "local: ");
        let local = if variant.lacks(library).next().is_some() { local } else { String::new() };
        fs::write(&exports, format!("{{ global: cu*; nvrtc*; nccl*; nvml*; stand_in_*; {local}}};\n"))?;
        let mut command = Command::new(compiler());
        command.args(FLAGS).args(["-w", "-shared", "-Wl,-z,nodelete", "-Wl,-Bsymbolic"]);
        command.arg(format!("-Wl,-soname,{name}")).arg("-o").arg(folder.join(&name)).arg(&version);
        command.args(units(library).iter().map(|(unit, _)| object(&root.join("objects"), unit)));
        command.arg(format!("-Wl,--version-script={}", exports.display())).args(["-ldl", "-pthread"]);
        run(&mut command)?;
        fs::remove_file(version)?;
        fs::remove_file(exports)?;
    }
    Ok(())
}
