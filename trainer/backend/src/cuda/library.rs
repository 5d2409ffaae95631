//! Libraries of CUDA, opened when they are wanted and never linked: one binary serves hosts with a GPU and without.
//!
//! A library is a table of functions, each looked up by its name. One that lacks a function is too old, and is refused
//! with that name; a library that is not there is an error that says which package brings it.

use std::error::Error;
use std::path::{Path, PathBuf};

/// Why the GPU of a host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// Under none of its names.
    #[error("{library} is not on this host (looked for {names}): {remedy} ({reason})")]
    Missing {
        /// What it is called.
        library: &'static str,
        /// The names of its file that were tried.
        names: String,
        /// What to do.
        remedy: &'static str,
        /// What the system's loader said of the last.
        reason: String,
    },
    /// A function that it does not have.
    #[error(
        "{library} of this host ({file}) has no function {function}: it is older than Millstream needs; {remedy}"
    )]
    Function {
        /// What it is called.
        library: &'static str,
        /// Its file.
        file: String,
        /// What it lacks.
        function: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A version from before all that is needed was there.
    #[error("{library} of this host is of version {found}, and Millstream needs {needed} or later: {remedy}")]
    Old {
        /// What it is called.
        library: &'static str,
        /// Its version.
        found: String,
        /// The least that will do.
        needed: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// What a library is called, and how its files are.
#[derive(Clone, Copy)]
pub(super) struct Name {
    /// For people.
    pub(super) library: &'static str,
    /// The names of its file, the best first.
    pub(super) files: &'static [&'static str],
    /// What to do where it is missing or too old.
    pub(super) remedy: &'static str,
}

/// Where libraries are looked for.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    /// In this folder alone; else wherever the system's loader looks, and where CUDA is installed by custom.
    folder: Option<PathBuf>,
}

/// Where NVIDIA's packages put libraries that the loader is not always told of.
const CUSTOMARY: [&str; 3] = ["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"];

impl Libraries {
    /// Those of one folder, and no others.
    pub fn of(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    /// Opens the first file that is there.
    pub(super) fn open(&self, name: &Name) -> Result<Library, LibraryError> {
        let mut reason = String::new();
        for file in name.files.iter().flat_map(|file| self.places(file)) {
            // SAFETY: what these libraries do when they are loaded is their makers' affair, as it is for every program
            // that uses a GPU; they ask nothing of the one that loads them.
            match unsafe { libloading::Library::new(&file) } {
                Ok(library) => return Ok(Library { library, file, name: *name }),
                // The loader's own words are below.
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

/// An open library. Functions taken from it are good as long as it is.
pub(super) struct Library {
    library: libloading::Library,
    file: PathBuf,
    name: Name,
}

impl Library {
    /// The function `function`.
    ///
    /// # Safety
    /// `F` is the type of a pointer to it, as the library's header declares it.
    pub(super) unsafe fn function<F: Copy>(&self, function: &'static str) -> Result<F, LibraryError> {
        // SAFETY: by the caller's promise.
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

    /// That a version, numbered `1000 * major + 10 * minor`, is not below `needed`.
    pub(super) fn check_version(&self, found: i32, needed: i32) -> Result<(), LibraryError> {
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

/// `13.0` for 13000.
pub(super) fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Declares a table of a library's functions, and how it is filled.
macro_rules! functions {
    (
        $(#[$doc:meta])*
        struct $table:ident {
            $($name:ident: fn($($argument:ident: $kind:ty),* $(,)?) -> $result:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the library's names")]
        struct $table {
            $($name: unsafe extern "C" fn($($argument: $kind),*) -> $result,)*
            /// Keeps them good.
            _library: $crate::cuda::library::Library,
        }

        impl $table {
            fn load(library: $crate::cuda::library::Library) -> Result<Self, $crate::cuda::library::LibraryError> {
                Ok(Self {
                    // SAFETY: declared as the library's header does.
                    $($name: unsafe { library.function(stringify!($name)) }?,)*
                    _library: library,
                })
            }
        }
    };
}

pub(super) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_told_with_what_the_loader_says() {
        let name = Name { library: "A library", files: &["libnothing.so.1"], remedy: "install it" };
        let Err(error) = Libraries::of(Path::new("/nowhere")).open(&name) else { panic!("it is there") };
        let told = error.to_string();
        assert!(
            told.starts_with(
                "A library is not on this host (looked for libnothing.so.1): install it (/nowhere/"
            ),
            "{told}"
        );
        assert!(told.contains("No such file"), "{told}");
    }
}
