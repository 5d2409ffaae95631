//! Programs: the kernels, their compilation, and the cache of compiled images.
//!
//! A program is a file of `kernels/`, compiled for the GPU in use by [`super::nvrtc`] and cached on disk under the
//! hash of all its inputs, so each host compiles it once. A kernel takes one argument, a structure that is declared
//! twice: in `kernels.rs` and in the program. Compilation fails if the two declarations differ in size.

use std::collections::HashMap;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::driver::{Context, Fault, Kernel, Module};
use zerocopy::{Immutable, IntoBytes};

use super::nvrtc::{Architecture, CompileError, Compiler, Header};

/// The argument of a kernel.
///
/// # Safety
/// The type has the layout of the structure that the kernel takes, as declared in its program.
pub(super) unsafe trait Arguments: Copy + Immutable + IntoBytes {}

/// A kernel by name, with its argument type.
#[derive(Clone, Copy)]
pub(super) struct Entry<A> {
    pub(super) name: &'static str,
    /// Threads per block.
    pub(super) threads: u32,
    arguments: PhantomData<fn(&A)>,
}

impl<A: Arguments> Entry<A> {
    pub(super) const fn new(name: &'static str, threads: u32) -> Self {
        Self { name, threads, arguments: PhantomData }
    }

    pub(super) const fn spec(&self) -> KernelSpec {
        KernelSpec { name: self.name, threads: self.threads, argument_bytes: size_of::<A>() }
    }
}

/// Properties of a kernel that are known before compilation.
#[derive(Clone, Copy)]
pub(super) struct KernelSpec {
    name: &'static str,
    threads: u32,
    argument_bytes: usize,
}

/// Declares a program: its file, the structures that its kernels take, and the kernels as `NAME = kernel(Structure,
/// threads)`.
macro_rules! program {
    (
        $program:ident = $file:literal;
        $(struct $name:ident { $($field:ident: $kind:ty),* $(,)? })*
        $(kernel $entry:ident = $kernel:ident($arguments:ident, $threads:expr);)*
    ) => {
        $(
            #[derive(Clone, Copy, Default, zerocopy::Immutable, zerocopy::IntoBytes)]
            #[repr(C)]
            pub(super) struct $name { $(pub(super) $field: $kind),* }

            // SAFETY: the program declares a structure with the same fields, and its static assertions check the
            // size.
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

/// A source file of kernels.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    pub(super) kernels: &'static [KernelSpec],
}

/// The headers that every program may include.
const HEADERS: [(&str, &str); 8] = [
    ("device.cuh", include_str!("kernels/device.cuh")),
    ("reduce.cuh", include_str!("kernels/reduce.cuh")),
    ("scan.cuh", include_str!("kernels/scan.cuh")),
    ("copies.cuh", include_str!("kernels/copies.cuh")),
    ("batch.cuh", include_str!("kernels/batch.cuh")),
    ("update.cuh", include_str!("kernels/update.cuh")),
    ("tensor.cuh", include_str!("kernels/tensor.cuh")),
    ("random.cuh", include_str!("kernels/random.cuh")),
];

impl Program {
    /// The headers: the shared texts, and the declarations generated for this program's kernels.
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

    /// The image and the compiler's log.
    fn compile(
        &self,
        compiler: &Compiler,
        architecture: Architecture,
        is_verbose: bool,
    ) -> Result<(Vec<u8>, String), CompileError> {
        compiler.compile(self.name, self.source, &self.headers(), architecture, is_verbose)
    }

    /// The resources that each kernel uses on GPUs of one compute capability.
    pub(super) fn resources(
        &self,
        compiler: &Compiler,
        architecture: Architecture,
    ) -> Result<Vec<Resources>, CompileError> {
        let (_, log) = self.compile(compiler, architecture, true)?;
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

    /// The file name of the compiled image, with the hash of all its inputs.
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

/// The multiprocessor resources that a kernel uses; `None` where the compiler did not report a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// The source file.
    pub program: &'static str,
    /// The kernel's name.
    pub kernel: &'static str,
    /// The target architecture.
    pub architecture: String,
    /// Threads per block.
    pub threads: u32,
    /// Registers per thread.
    pub registers: Option<u32>,
    /// Bytes per thread that are spilled from registers to memory.
    pub spilled_bytes: Option<u32>,
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
}

/// The number before `unit` in the assembler's log entry of `kernel`.
fn number_before(log: &str, kernel: &str, unit: &str) -> Option<u32> {
    let entry =
        log.split("Compiling entry function ").find(|entry| entry.starts_with(&format!("'{kernel}'")))?;
    let (before, _) = entry.split_once(unit)?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Why kernels could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A program could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A program could not be loaded.
    #[error("program {program}: {fault}")]
    Load {
        /// The program.
        program: &'static str,
        /// The driver's error.
        fault: Fault,
    },
}

/// All kernels, loaded.
pub(super) struct Kernels {
    by_name: HashMap<&'static str, Kernel>,
    /// Keeps the kernels loaded.
    _modules: Vec<Module>,
}

impl Kernels {
    /// Loads all programs; compiles those that are not in the cache directory `folder`.
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

/// The image of each program; missing ones are compiled in parallel.
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
                    let (image, _) = program.compile(compiler, architecture, false)?;
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

/// Size of the hash at the end of a cached file.
const HASH_BYTES: usize = 32;

/// Reads a cached image, if it is intact.
fn kept(file: &Path) -> Option<Vec<u8>> {
    let mut image = fs::read(file).ok()?;
    let hash = image.split_off(image.len().checked_sub(HASH_BYTES)?);
    (hash[..] == Sha256::digest(&image)[..]).then_some(image)
}

/// Writes an image to the cache. Ignores failures: the image is then compiled again next time.
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
