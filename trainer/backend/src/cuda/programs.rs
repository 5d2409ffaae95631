//! The programs: which kernels there are, how they are compiled, and where the machine code is kept.
//!
//! A program is a file of `kernels/`, compiled for the GPU at hand by [`super::nvrtc`] and kept on disk under the hash of
//! all that it was made of, so that it is compiled once a host. A kernel takes one argument, a structure that is
//! declared twice, in `kernels.rs` and in the program. The compiler refuses a program whose structures have other sizes
//! than Rust's.

use std::collections::HashMap;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::driver::{Context, Fault, Kernel, Module};
use super::nvrtc::{Architecture, CompileError, Compiler, Header};

/// The argument of a kernel.
///
/// # Safety
/// It is laid out as the structure that the kernel takes, of its program's language.
pub(super) unsafe trait Arguments: Copy {}

/// A kernel, by its name, and what it takes.
pub(super) struct Entry<A> {
    pub(super) name: &'static str,
    /// Threads of a block.
    pub(super) threads: u32,
    arguments: PhantomData<fn(&A)>,
}

impl<A> Clone for Entry<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Entry<A> {}

impl<A: Arguments> Entry<A> {
    pub(super) const fn new(name: &'static str, threads: u32) -> Self {
        Self { name, threads, arguments: PhantomData }
    }

    pub(super) const fn spec(&self) -> KernelSpec {
        KernelSpec { name: self.name, threads: self.threads, argument_bytes: size_of::<A>() }
    }
}

/// What is known of a kernel before it is compiled.
#[derive(Clone, Copy)]
pub(super) struct KernelSpec {
    name: &'static str,
    threads: u32,
    argument_bytes: usize,
}

/// Declares a program: its file, the structures that its kernels take, and the kernels: `NAME = kernel(Structure, threads)`.
macro_rules! program {
    (
        $program:ident = $file:literal;
        $(struct $name:ident { $($field:ident: $kind:ty),* $(,)? })*
        $(kernel $entry:ident = $kernel:ident($arguments:ident, $threads:expr);)*
    ) => {
        $(
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub(super) struct $name { $(pub(super) $field: $kind),* }

            // SAFETY: the structure in the program has the same fields, and the compiler checks its size.
            unsafe impl $crate::cuda::programs::Arguments for $name {}
        )*
        $(
            pub(super) const $entry: $crate::cuda::programs::Entry<$arguments> =
                $crate::cuda::programs::Entry::new(stringify!($kernel), $threads);
        )*
        pub(super) const $program: $crate::cuda::programs::Program = $crate::cuda::programs::Program {
            name: $file,
            source: include_str!(concat!("kernels/", $file)),
            kernels: &[$($entry.spec()),*],
        };
    };
}

pub(super) use program;

/// A file of kernels.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    pub(super) kernels: &'static [KernelSpec],
}

/// What every program may include.
const HEADERS: [(&str, &str); 6] = [
    ("device.cuh", include_str!("kernels/device.cuh")),
    ("reduce.cuh", include_str!("kernels/reduce.cuh")),
    ("batch.cuh", include_str!("kernels/batch.cuh")),
    ("update.cuh", include_str!("kernels/update.cuh")),
    ("tensor.cuh", include_str!("kernels/tensor.cuh")),
    ("random.cuh", include_str!("kernels/random.cuh")),
];

impl Program {
    /// What it includes: with the texts of all programs, what is declared of its kernels.
    fn headers(&self) -> Vec<Header> {
        let declared = self.kernels.iter().map(|kernel| {
            let KernelSpec { name, threads, argument_bytes } = kernel;
            format!(
                "#define THREADS_OF_{name} {threads}\n#define ARGUMENT_BYTES_OF_{name} {argument_bytes}\n"
            )
        });
        let declared = Header { name: "declared.cuh", text: declared.collect() };
        let texts = HEADERS.map(|(name, text)| Header { name, text: text.to_owned() });
        texts.into_iter().chain([declared]).collect()
    }

    fn compile(&self, compiler: &Compiler, architecture: Architecture) -> Result<Vec<u8>, CompileError> {
        let compiled = compiler.compile(self.name, self.source, &self.headers(), architecture, false);
        compiled.map(|(image, _)| image)
    }

    /// What a thread of each kernel takes on GPUs of one compute capability.
    pub(super) fn resources(
        &self,
        compiler: &Compiler,
        architecture: Architecture,
    ) -> Result<Vec<Resources>, CompileError> {
        let compiled = compiler.compile(self.name, self.source, &self.headers(), architecture, true);
        let (_, log) = compiled?;
        let of_kernel = |spec: &KernelSpec| Resources {
            program: self.name,
            kernel: spec.name,
            architecture: architecture.name(),
            threads: spec.threads,
            registers: number_before(&log, spec.name, " registers"),
            spilled_bytes: number_before(&log, spec.name, " bytes spill stores"),
            shared_bytes: number_before(&log, spec.name, " bytes smem").unwrap_or(0),
        };
        Ok(self.kernels.iter().map(of_kernel).collect())
    }

    /// The name of its image's file: the hash of all that it is made of.
    fn file(&self, compiler: &Compiler, architecture: Architecture) -> String {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        add(&compiler.version());
        add(&architecture.name());
        add(self.source);
        self.headers().iter().for_each(|header| add(&header.text));
        let digest = hash.finalize();
        let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-{digits}", self.name.trim_end_matches(".cu"), architecture.name())
    }
}

/// What a thread of a kernel takes of a multiprocessor; none where the compiler did not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// The file.
    pub program: &'static str,
    /// Its name.
    pub kernel: &'static str,
    /// What it was compiled for.
    pub architecture: String,
    /// The most threads of a block.
    pub threads: u32,
    /// Registers.
    pub registers: Option<u32>,
    /// Bytes that found no register, and go through memory.
    pub spilled_bytes: Option<u32>,
    /// Bytes that a block shares.
    pub shared_bytes: u32,
}

/// The number before `unit` in what the assembler's log tells of `kernel`.
fn number_before(log: &str, kernel: &str, unit: &str) -> Option<u32> {
    let told =
        log.split("Compiling entry function ").find(|told| told.starts_with(&format!("'{kernel}'")))?;
    let (before, _) = told.split_once(unit)?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Why kernels could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Loaded.
    #[error("program {program}: {fault}")]
    Load {
        /// Which program.
        program: &'static str,
        /// What the driver says.
        fault: Fault,
    },
}

/// All kernels, loaded.
pub(super) struct Kernels {
    by_name: HashMap<&'static str, Kernel>,
    /// Keep the kernels.
    _modules: Vec<Module>,
}

impl Kernels {
    /// Compiles what `folder` does not have yet, and loads all.
    pub(super) fn load(
        context: &Arc<Context>,
        compiler: &Compiler,
        programs: &[Program],
        folder: Option<&Path>,
    ) -> Result<Self, ProgramError> {
        let architecture = compiler.architecture_of(context.gpu().capability);
        let images = images(compiler, programs, architecture, folder)?;
        let (mut by_name, mut modules) = (HashMap::new(), Vec::new());
        for (program, image) in programs.iter().zip(images) {
            let failed = |fault| ProgramError::Load { program: program.name, fault };
            let module = Module::load(context, &image).map_err(failed)?;
            for spec in program.kernels {
                by_name.insert(spec.name, module.kernel(spec.name).map_err(failed)?);
            }
            modules.push(module);
        }
        Ok(Self { by_name, _modules: modules })
    }

    pub(super) fn of<A>(&self, entry: Entry<A>) -> &Kernel {
        self.by_name.get(entry.name).expect("every kernel is declared with its program")
    }
}

/// The image of each program, the missing ones compiled side by side.
fn images(
    compiler: &Compiler,
    programs: &[Program],
    architecture: Architecture,
    folder: Option<&Path>,
) -> Result<Vec<Vec<u8>>, CompileError> {
    std::thread::scope(|scope| {
        let images: Vec<_> = programs
            .iter()
            .map(|program| {
                scope.spawn(move || {
                    let file = folder.map(|folder| folder.join(program.file(compiler, architecture)));
                    if let Some(image) = file.as_deref().and_then(kept) {
                        return Ok(image);
                    }
                    let image = program.compile(compiler, architecture)?;
                    if let Some(file) = file {
                        keep(&file, &image);
                    }
                    Ok(image)
                })
            })
            .collect();
        images.into_iter().map(|image| image.join().expect("compiling does not panic")).collect()
    })
}

/// Bytes of the hash that ends a file.
const HASH_BYTES: usize = 32;

/// An image that was kept, if it is whole.
fn kept(file: &Path) -> Option<Vec<u8>> {
    let mut image = fs::read(file).ok()?;
    let hash = image.split_off(image.len().checked_sub(HASH_BYTES)?);
    (hash[..] == Sha256::digest(&image)[..]).then_some(image)
}

/// Keeps an image where that can be; it is only made again where it cannot.
fn keep(file: &Path, image: &[u8]) {
    let whole = [image, &Sha256::digest(image)[..]].concat();
    let temporary: PathBuf = file.with_extension(format!("{}.partial", std::process::id()));
    let folder = file.parent().expect("a file in a folder");
    let kept = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&temporary, whole))
        .and_then(|()| fs::rename(&temporary, file));
    if kept.is_err() {
        let _ = fs::remove_file(&temporary);
    }
}
