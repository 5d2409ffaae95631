//! Runs a loop compiled for the widest vector instructions of the machine.
//!
//! Loops are written in scalar Rust and vectorized by the compiler. A loop passed to [`run`] is compiled
//! once per instruction set, and the best one is selected at run time. Results are the same for all:
//! integers wrap identically, and each float operation is rounded separately, because the compiler does
//! not contract them to fused multiply-adds.

use pulp::{Arch, NullaryFnOnce};

struct Kernel<F>(F);

impl<R, F: FnOnce() -> R> NullaryFnOnce for Kernel<F> {
    type Output = R;

    #[inline(always)]
    fn call(self) -> R {
        (self.0)()
    }
}

/// Runs `kernel`. Mark the closure and everything it calls `#[inline(always)]`: code that is not inlined is
/// compiled for the build's baseline.
#[inline(always)]
pub(crate) fn run<R>(kernel: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(Kernel(kernel))
}
