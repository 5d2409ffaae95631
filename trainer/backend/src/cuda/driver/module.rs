//! Loaded modules and their kernels.

use std::ffi::CString;
use std::ptr;
use std::sync::Arc;

use super::{Context, Fault, Handle};

/// A compiled program loaded into a context.
pub(in crate::cuda) struct Module {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Send for Module {}
// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Sync for Module {}

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

// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Send for Kernel {}
// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Sync for Kernel {}

impl Module {
    /// Loads `image`: machine code, or PTX for the driver to compile, followed by a zero byte.
    pub(in crate::cuda) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self, Fault> {
        assert_eq!(image.last(), Some(&0), "an image ends in a zero");
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is valid for writes during the call; a cubin contains its own length, and PTX ends at
        // the zero byte.
        let status = unsafe { (functions.cuModuleLoadData)(&raw mut handle, image.as_ptr().cast()) };
        context.check("cuModuleLoadData", status)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    pub(in crate::cuda) fn kernel(&self, name: &'static str) -> Result<Kernel, Fault> {
        let functions = self.context.enter()?;
        let mut handle = ptr::null_mut();
        let c_name = CString::new(name).expect("names have no zeros");
        // SAFETY: `handle` is valid for writes during the call; the module is loaded, and `c_name` is
        // zero-terminated.
        let status =
            unsafe { (functions.cuModuleGetFunction)(&raw mut handle, self.handle, c_name.as_ptr()) };
        self.context.check("cuModuleGetFunction", status)?;
        Ok(Kernel { handle, name })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(functions) = self.context.enter() {
            // SAFETY: loaded once, unloaded once.
            unsafe { (functions.cuModuleUnload)(self.handle) };
        }
    }
}
