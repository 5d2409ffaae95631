//! Loaded modules and their kernels.

use std::ffi::CString;
use std::sync::Arc;

use super::{Context, Fault, Functions, Handle, Object};

/// A compiled program loaded into a context.
pub(in crate::cuda) struct Module(Object);

/// A kernel of a module; valid while the module is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Kernel {
    pub(super) handle: Handle,
    pub(in crate::cuda) name: &'static str,
}

/// A kernel launch without its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Launch {
    pub(in crate::cuda) kernel: Kernel,
    pub(in crate::cuda) blocks: [u32; 2],
    pub(in crate::cuda) threads: u32,
}

impl Module {
    /// Loads `image`: machine code, or PTX for the driver to compile, followed by a zero byte.
    pub(in crate::cuda) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self, Fault> {
        assert_eq!(image.last(), Some(&0), "an image ends in a zero");
        // SAFETY: `module` is valid for writes during the call, which writes a module; a cubin contains its own
        // length, and PTX ends at the zero byte.
        unsafe {
            let load =
                |functions: &Functions, module| functions.cuModuleLoadData(module, image.as_ptr().cast());
            Object::new(context, load, |functions| functions.cuModuleUnload)
                .map(|object| Self(object.waiting()))
        }
    }

    pub(in crate::cuda) fn kernel(&self, name: &'static str) -> Result<Kernel, Fault> {
        let mut handle = Handle::NULL;
        let c_name = CString::new(name).expect("names have no zeros");
        // SAFETY: `handle` is valid for writes during the call; the module is loaded, and `c_name` is
        // zero-terminated.
        unsafe { self.0.enter()?.cuModuleGetFunction(&raw mut handle, self.0.handle, c_name.as_ptr()) }?;
        Ok(Kernel { handle, name })
    }
}
