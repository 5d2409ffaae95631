//! The run-time compiler (NVRTC), which compiles CUDA C++ to machine code for one GPU architecture.
//!
//! It needs neither a GPU nor the driver nor the toolkit's headers: the kernels bring everything that they include.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use crate::library::{Libraries, LibraryError, Name, functions};

type Status = c_int;
type Program = *mut c_void;

functions! {
    /// Functions of libnvrtc.
    struct Functions {
        nvrtcGetErrorString: fn(status: Status) -> *const c_char,
        nvrtcGetNumSupportedArchs: fn(count: *mut c_int) -> Status,
        nvrtcGetSupportedArchs: fn(architectures: *mut c_int) -> Status,
        nvrtcCreateProgram: fn(
            program: *mut Program,
            source: *const c_char,
            name: *const c_char,
            header_count: c_int,
            headers: *const *const c_char,
            header_names: *const *const c_char,
        ) -> Status,
        nvrtcDestroyProgram: fn(program: *mut Program) -> Status,
        nvrtcCompileProgram: fn(program: Program, option_count: c_int, options: *const *const c_char) -> Status,
        nvrtcGetProgramLogSize: fn(program: Program, bytes: *mut usize) -> Status,
        nvrtcGetProgramLog: fn(program: Program, log: *mut c_char) -> Status,
        nvrtcGetCUBINSize: fn(program: Program, bytes: *mut usize) -> Status,
        nvrtcGetCUBIN: fn(program: Program, image: *mut c_char) -> Status,
        nvrtcGetPTXSize: fn(program: Program, bytes: *mut usize) -> Status,
        nvrtcGetPTX: fn(program: Program, image: *mut c_char) -> Status,
    }
}

pub(super) const NAME: Name = Name {
    library: "NVIDIA's run-time compiler (NVRTC)",
    files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    remedy: "install package cuda-nvrtc-13-0 or later, of the series of CUDA that your driver serves",
};
/// The first version that supports the kernels' argument declarations.
const LEAST_VERSION: i32 = 12_000;

/// Why compilation failed.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler is missing or too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The compiler rejects a program, which is a defect of the program.
    #[error("NVRTC cannot compile {program} for {architecture}: {reason}\n{log}")]
    Refused {
        /// The program.
        program: String,
        /// The target architecture.
        architecture: String,
        /// The kind of error.
        reason: String,
        /// The compiler's log.
        log: String,
    },
}

/// The compilation target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    /// Machine code for this compute capability, `10 * major + minor`.
    Real(u32),
    /// PTX for this compute capability, which the driver compiles to machine code.
    Virtual(u32),
}

impl Architecture {
    pub(super) fn name(self) -> String {
        match self {
            Self::Real(number) => format!("sm_{number}"),
            Self::Virtual(number) => format!("compute_{number}"),
        }
    }
}

/// A header that programs include.
pub(super) struct Header {
    pub(super) name: &'static str,
    pub(super) text: String,
}

pub(super) struct Compiler {
    functions: Functions,
    version: (i32, i32),
}

impl Compiler {
    pub(super) fn open(libraries: &Libraries) -> Result<Self, LibraryError> {
        let library = libraries.open(&NAME)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function pointer has the signature of nvrtc.h; `major` and `minor` are valid for writes
        // during the call.
        unsafe {
            let get: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status =
                library.function("nvrtcVersion")?;
            get(&raw mut major, &raw mut minor);
        }
        library.check_version(major * 1000 + minor * 10, LEAST_VERSION)?;
        Ok(Self { functions: Functions::load(library)?, version: (major, minor) })
    }

    pub(super) fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// The target for a GPU of this compute capability: machine code if the compiler supports it, otherwise PTX of
    /// the latest earlier one.
    pub(super) fn architecture_of(&self, (major, minor): (i32, i32)) -> Architecture {
        let wanted = (10 * major + minor) as u32;
        let mut count = 0;
        // SAFETY: `count` is valid for writes during the call, and `known` has room for `count` numbers.
        let known = unsafe {
            (self.functions.nvrtcGetNumSupportedArchs)(&raw mut count);
            let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
            (self.functions.nvrtcGetSupportedArchs)(known.as_mut_ptr());
            known
        };
        let before = known.iter().map(|&number| number as u32).filter(|&number| number <= wanted).max();
        match before {
            Some(number) if number != wanted => Architecture::Virtual(number),
            _ => Architecture::Real(wanted),
        }
    }

    /// Compiles to a loadable image, machine code or PTX followed by a zero byte. Also returns the compiler's log,
    /// which lists each kernel's resources if `is_verbose`.
    pub(super) fn compile(
        &self,
        program: &str,
        source: &str,
        headers: &[Header],
        architecture: Architecture,
        is_verbose: bool,
    ) -> Result<(Vec<u8>, String), CompileError> {
        let text = |text: &str| CString::new(text).expect("sources have no zeros");
        let (source, name) = (text(source), text(program));
        let texts: Vec<CString> = headers.iter().map(|header| text(&header.text)).collect();
        let names: Vec<CString> = headers.iter().map(|header| text(header.name)).collect();
        let target = format!("--gpu-architecture={}", architecture.name());
        let verbose = is_verbose.then_some("--ptxas-options=-v");
        let options = [target.as_str(), "--std=c++17"].into_iter().chain(verbose).map(text);
        let options: Vec<CString> = options.collect();
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));
        let mut handle = ptr::null_mut();
        // SAFETY: all strings are zero-terminated and outlive the call; `texts` and `names` have `count` elements
        // each.
        let created = unsafe {
            let (count, texts, names) = (texts.len() as c_int, texts.as_ptr(), names.as_ptr());
            (self.functions.nvrtcCreateProgram)(
                &raw mut handle,
                source.as_ptr(),
                name.as_ptr(),
                count,
                texts,
                names,
            )
        };
        let program = Compilation { compiler: self, handle, name: program, architecture };
        program.check(created)?;
        // SAFETY: all options are zero-terminated and outlive the call; `options.len()` is their count.
        program.check(unsafe {
            (self.functions.nvrtcCompileProgram)(handle, options.len() as c_int, options.as_ptr())
        })?;
        Ok((program.image()?, program.log()))
    }
}

/// A program being compiled.
struct Compilation<'a> {
    compiler: &'a Compiler,
    handle: Program,
    name: &'a str,
    architecture: Architecture,
}

impl Compilation<'_> {
    fn check(&self, status: Status) -> Result<(), CompileError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the compiler has a zero-terminated text for every status, which lives as long as the library.
        let reason = unsafe { CStr::from_ptr((self.compiler.functions.nvrtcGetErrorString)(status)) };
        Err(CompileError::Refused {
            program: self.name.to_owned(),
            architecture: self.architecture.name(),
            reason: reason.to_string_lossy().into_owned(),
            log: self.log(),
        })
    }

    fn log(&self) -> String {
        let functions = &self.compiler.functions;
        let mut bytes = 0;
        // SAFETY: `bytes` is valid for writes during the call, and the log's buffer has at least that many bytes.
        let log = unsafe {
            if self.handle.is_null() || (functions.nvrtcGetProgramLogSize)(self.handle, &raw mut bytes) != 0 {
                return String::new();
            }
            let mut log = vec![0_u8; bytes + 1];
            (functions.nvrtcGetProgramLog)(self.handle, log.as_mut_ptr().cast());
            log
        };
        String::from_utf8_lossy(&log).trim_end_matches('\0').trim_end().to_owned()
    }

    fn image(&self) -> Result<Vec<u8>, CompileError> {
        let functions = &self.compiler.functions;
        let (size, get) = match self.architecture {
            Architecture::Real(_) => (functions.nvrtcGetCUBINSize, functions.nvrtcGetCUBIN),
            Architecture::Virtual(_) => (functions.nvrtcGetPTXSize, functions.nvrtcGetPTX),
        };
        let mut bytes = 0;
        // SAFETY: `bytes` is valid for writes during the call, and the image's buffer has at least that many bytes.
        unsafe {
            self.check(size(self.handle, &raw mut bytes))?;
            let mut image = vec![0_u8; bytes + 1];
            self.check(get(self.handle, image.as_mut_ptr().cast()))?;
            Ok(image)
        }
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.compiler.functions.nvrtcDestroyProgram)(&raw mut self.handle) };
    }
}
