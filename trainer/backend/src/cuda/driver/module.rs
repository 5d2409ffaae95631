//! Compiled programs.

use std::ffi::CString;
use std::ptr;
use std::sync::Arc;

use super::{Context, Fault, Handle};

/// A compiled program, loaded.
pub(in crate::cuda) struct Module {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: as of the context.
unsafe impl Send for Module {}
// SAFETY: as of the context.
unsafe impl Sync for Module {}

/// A kernel of a module, good as long as that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Kernel {
    pub(super) handle: Handle,
    pub(in crate::cuda) name: &'static str,
}

/// A run of a kernel, but for its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Launch {
    pub(in crate::cuda) kernel: Kernel,
    pub(in crate::cuda) blocks: [u32; 2],
    pub(in crate::cuda) threads: u32,
}

// SAFETY: as of the context.
unsafe impl Send for Kernel {}
// SAFETY: as of the context.
unsafe impl Sync for Kernel {}

impl Module {
    /// `image` is machine code, or PTX for the driver to compile, with a zero behind.
    pub(in crate::cuda) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self, Fault> {
        assert_eq!(image.last(), Some(&0), "an image ends in a zero");
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is written; an image says its length itself, or ends by the zero.
        let status = unsafe { (functions.cuModuleLoadData)(&raw mut handle, image.as_ptr().cast()) };
        context.check("cuModuleLoadData", status)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    pub(in crate::cuda) fn kernel(&self, name: &'static str) -> Result<Kernel, Fault> {
        let functions = self.context.enter()?;
        let mut handle = ptr::null_mut();
        let c_name = CString::new(name).expect("names have no zeros");
        // SAFETY: `handle` is written.
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
