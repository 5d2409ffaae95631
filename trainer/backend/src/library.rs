//! Shared libraries, loaded at run time and never linked: CUDA's, and UCX for communication between workers. One binary
//! runs on hosts with and without a GPU.
//!
//! A library is a table of functions, each looked up by name. A library that lacks a function is too old, and the
//! error names the function. The error for a missing library names the package that provides it.
//!
//! Own tables instead of a binding crate: they hold only the functions in use, so a library that lacks others still works,
//! and a missing function is an error when the library is loaded.

use std::error::Error;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr;

/// Why a library of a host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The library was found under none of its file names.
    #[error("{library} is not on this host (looked for {names}): {remedy} ({reason})")]
    Missing {
        /// The library's display name.
        library: &'static str,
        /// The file names that were tried.
        names: String,
        /// The suggested fix.
        remedy: &'static str,
        /// The loader's error for the last file.
        reason: String,
    },
    /// The library lacks a function.
    #[error(
        "{library} of this host ({file}) has no function {function}: it is older than Millstream needs; {remedy}"
    )]
    Function {
        /// The library's display name.
        library: &'static str,
        /// The library's file.
        file: String,
        /// The missing function.
        function: &'static str,
        /// The suggested fix.
        remedy: &'static str,
    },
    /// The library's version is too old.
    #[error("{library} of this host is of version {found}, and Millstream needs {needed} or later: {remedy}")]
    Old {
        /// The library's display name.
        library: &'static str,
        /// The version found.
        found: String,
        /// The oldest supported version.
        needed: String,
        /// The suggested fix.
        remedy: &'static str,
    },
}

/// The names of a library.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    /// The display name.
    pub(crate) library: &'static str,
    /// The file names, in order of preference.
    pub(crate) files: &'static [&'static str],
    /// The suggested fix if the library is missing or too old.
    pub(crate) remedy: &'static str,
}

/// Where libraries are searched.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    /// Only in this directory; if `None`, on the system's search path and in the usual directories of CUDA
    /// installations.
    folder: Option<PathBuf>,
}

/// Directories of NVIDIA's packages that are not always on the loader's search path.
const CUSTOMARY: [&str; 3] = ["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"];

impl Libraries {
    /// The libraries of one directory only.
    pub fn of(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    /// Loads the first of the library's files that exists.
    pub(crate) fn open(&self, name: &Name) -> Result<Library, LibraryError> {
        let mut reason = String::new();
        for file in name.files.iter().flat_map(|file| self.places(file)) {
            // SAFETY: loading runs the library's initializers. Those of CUDA and UCX impose no requirements on the process
            // that loads them.
            match unsafe { libloading::Library::new(&file) } {
                Ok(library) => return Ok(Library { library, file, name: *name }),
                // `source` is the loader's own message.
                Err(error) => reason = error.source().map_or_else(|| error.to_string(), ToString::to_string),
            }
        }
        let names = name.files.join(", ");
        Err(LibraryError::Missing { library: name.library, names, remedy: name.remedy, reason })
    }

    fn places(&self, file: &str) -> Vec<PathBuf> {
        match &self.folder {
            Some(folder) => vec![folder.join(file)],
            None => std::iter::once(PathBuf::from(file))
                .chain(CUSTOMARY.iter().map(|folder| Path::new(folder).join(file)))
                .collect(),
        }
    }
}

/// A loaded library. Functions taken from it are valid while it is loaded.
pub(crate) struct Library {
    library: libloading::Library,
    file: PathBuf,
    name: Name,
}

impl Library {
    /// Looks up `function`.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function, as the library's header declares it.
    pub(crate) unsafe fn function<F: Copy>(&self, function: &'static str) -> Result<F, LibraryError> {
        // SAFETY: the caller guarantees that `F` is the function's type.
        match unsafe { self.library.get::<F>(function) } {
            Ok(symbol) => Ok(*symbol),
            Err(_) => Err(LibraryError::Function {
                library: self.name.library,
                file: self.file.display().to_string(),
                function,
                remedy: self.name.remedy,
            }),
        }
    }

    /// Checks that version `found` is at least `needed`, both numbered `1000 * major + 10 * minor`.
    pub(crate) fn check_version(&self, found: i32, needed: i32) -> Result<(), LibraryError> {
        if found >= needed {
            return Ok(());
        }
        Err(LibraryError::Old {
            library: self.name.library,
            found: version(found),
            needed: version(needed),
            remedy: self.name.remedy,
        })
    }
}

/// The display form: `13.0` for 13000.
pub(crate) fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// An object of a library, which only the library looks into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) *mut c_void);

// SAFETY: a handle is only passed to functions of its library, which may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; the functions of the libraries in use synchronize themselves, or their caller holds a lock.
unsafe impl Sync for Handle {}

impl Handle {
    /// No object.
    pub(crate) const NULL: Self = Self(ptr::null_mut());

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// Declares a table of a library's functions, and its loader. Functions listed after `or` return a status: for each,
/// the table has a method that calls it and turns the status into a `Result` with the table's own `check`.
macro_rules! functions {
    (
        $(#[$doc:meta])*
        struct $table:ident {
            $($name:ident: fn($($argument:ident: $kind:ty),* $(,)?) -> $result:ty,)*
        }
        $(or $failure:ty {
            $($checked:ident: fn($($parameter:ident: $type:ty),* $(,)?),)*
        })?
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the library's names")]
        struct $table {
            $($name: unsafe extern "C" fn($($argument: $kind),*) -> $result,)*
            $($($checked: unsafe extern "C" fn($($parameter: $type),*) -> std::ffi::c_int,)*)?
            /// Keeps the functions valid.
            _library: $crate::library::Library,
        }

        impl $table {
            fn load(library: $crate::library::Library) -> Result<Self, $crate::library::LibraryError> {
                Ok(Self {
                    // SAFETY: each function is declared as in the library's header.
                    $($name: unsafe { library.function(stringify!($name)) }?,)*
                    // SAFETY: each function is declared as in the library's header.
                    $($($checked: unsafe { library.function(stringify!($checked)) }?,)*)?
                    _library: library,
                })
            }
        }

        $(
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "the library's names and arguments")]
            impl $table {
                $(
                    /// # Safety
                    /// The arguments fulfil the conditions of the function's documentation.
                    unsafe fn $checked(&self, $($parameter: $type),*) -> Result<(), $failure> {
                        // SAFETY: the caller guarantees that the arguments are valid.
                        self.check(stringify!($checked), unsafe { (self.$checked)($($parameter),*) })
                    }
                )*
            }
        )?
    };
}

pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_reported_with_the_loaders_error() {
        let name = Name { library: "A library", files: &["libnothing.so.1"], remedy: "install it" };
        let Err(error) = Libraries::of(Path::new("/nowhere")).open(&name) else { panic!("it is there") };
        let message = error.to_string();
        assert!(
            message.starts_with(
                "A library is not on this host (looked for libnothing.so.1): install it (/nowhere/"
            ),
            "{message}"
        );
        assert!(message.contains("No such file"), "{message}");
    }
}
