//! Running a loop compiled for the widest vector instructions that the machine has.
//!
//! Loops here are plain: the compiler makes vector instructions of them. One that is run by [`run`] is
//! compiled once for each width, and the machine's is taken. Results are the same for each: whole numbers
//! wrap alike everywhere, and of floats every operation is rounded on its own, as written; nothing is
//! contracted to a fused multiply-add by itself.

use pulp::{Arch, NullaryFnOnce};

struct Kernel<F>(F);

impl<R, F: FnOnce() -> R> NullaryFnOnce for Kernel<F> {
    type Output = R;

    #[inline(always)]
    fn call(self) -> R {
        (self.0)()
    }
}

/// Runs `kernel`. Mark the closure, and what it calls, `#[inline(always)]`: what is not inlined is
/// compiled for the build's baseline.
#[inline(always)]
pub(crate) fn run<R>(kernel: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(Kernel(kernel))
}
