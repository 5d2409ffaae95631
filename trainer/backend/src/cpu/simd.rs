//! Detection of vector instructions, and running kernels compiled for them.
//!
//! Kernels are plain loops that the compiler vectorizes. A kernel is a closure. [`run!`] inlines it into functions
//! that may use wider instructions than the build's baseline, so it is compiled once per vector width. Large
//! functions and closures that it calls are marked `#[inline(always)]` for the same reason. Loops are written so
//! that the width does not change the result: sums keep the order of their terms, and nothing is contracted to
//! fused multiply-adds implicitly.

/// Runs a kernel, `|task| ..`, for each of some tasks on all threads of a backend, compiled for the machine's
/// vector width.
///
/// Kernels must be inlined where they run. By its own heuristics the compiler would compile one out-of-line copy of
/// a large kernel for the build's baseline, and call it from all variants.
macro_rules! run {
    ($cpu:expr, $tasks:expr, |$task:ident| $kernel:expr $(,)?) => {
        $cpu.run_kernel(
            $tasks,
            #[inline(always)]
            |$task| $kernel,
        )
    };
}

/// The widest vector instructions to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Simd {
    /// The instructions of the build target.
    Baseline,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Simd {
    /// The widest instructions of this machine.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw");
            if has_avx512 {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::Baseline
    }

    /// The vendor's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Baseline if cfg!(target_arch = "x86_64") => "SSE2",
            Self::Baseline if cfg!(target_arch = "aarch64") => "NEON",
            Self::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "AVX-512",
        }
    }

    /// Runs `kernel`, compiled for these instructions.
    #[inline(always)]
    pub(crate) fn run<R>(self, kernel: impl FnOnce() -> R) -> R {
        match self {
            Self::Baseline => kernel(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `detect` returns this value only if the machine has AVX2.
            Self::Avx2 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `detect` returns this value only if the machine has the enabled AVX-512 features.
            Self::Avx512 => unsafe { run_avx512(kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2<R>(kernel: impl FnOnce() -> R) -> R {
    kernel()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
fn run_avx512<R>(kernel: impl FnOnce() -> R) -> R {
    kernel()
}
