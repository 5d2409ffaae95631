//! The peak rates of a device, measured with its own operations: the roofs that other operations are compared with.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::device::WorkspaceUse;
use crate::float::Float;
use crate::ops::{Activation, CopyRows, LayerForward};

/// Columns of the matrices, and rows of those that are multiplied.
const SIDE: usize = 1024;

/// Rows of a matrix that is copied, of the smallest size: 64 MiB of it.
const COPIED_ROWS: usize = 16 << 10;

/// Rows of one that is multiplied, of the smallest size.
const MULTIPLIED_ROWS: usize = 2 * SIDE;

/// How long each of both is repeated.
const ENOUGH: Duration = Duration::from_millis(120);

/// How often at the least, after the first time, which meets memory that nobody has touched.
const LEAST_TIMES: u32 = 3;

/// Work is repeated until it takes so long before its end is waited for: waiting for a device takes some
/// hundredths of it.
const LONG: Duration = Duration::from_millis(4);

/// The least time that work can take: at the rate of a copy, or of a product of matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Floors {
    /// Read and written by a copy of matrices of 64 MiB or more.
    pub bytes_per_second: f64,
    /// Of a layer of 1024 inputs and outputs over 2048 rows or more, in the format of the activations.
    pub flops_per_second: f64,
}

impl Floors {
    /// Those of `backend`, for activations of the format `float`, by matrices of `size` times the smallest: the best of
    /// some times.
    pub(crate) fn measure<B: Backend>(backend: &B, float: Float, size: usize) -> Self {
        let (copied_rows, multiplied_rows) = (size * COPIED_ROWS, size * MULTIPLIED_ROWS);
        let [mut from, mut to] = [copied_rows; 2].map(|rows| backend.matrix(rows, SIDE));
        let bytes = 2 * copied_rows * SIDE * B::matrix_shape(&from).number_bytes;
        let copy = best(backend, |backend| {
            backend.run(CopyRows { rows: copied_rows, from: &from, to: &mut to, first: 0 });
            std::mem::swap(&mut from, &mut to);
        });
        drop((from, to));
        let [input, mut output] = [multiplied_rows; 2].map(|rows| backend.matrix_of(float, rows, SIDE));
        let weights = backend.matrix(SIDE, SIDE);
        backend.reserve_workspace(&WorkspaceUse::Layer {
            float,
            rows: multiplied_rows,
            inputs: SIDE,
            outputs: SIDE,
        });
        let multiply = best(backend, |backend| {
            backend.run(LayerForward {
                rows: multiplied_rows,
                input: &input,
                weights: &weights,
                bias: None,
                activation: Activation::Identity,
                output: &mut output,
            });
        });
        let flops = 2 * multiplied_rows * SIDE * SIDE;
        Self { bytes_per_second: bytes as f64 / copy, flops_per_second: flops as f64 / multiply }
    }
}

/// The least seconds that `work` takes.
fn best<B: Backend>(backend: &B, mut work: impl FnMut(&B)) -> f64 {
    let mut repeated = |times: u32| {
        let start = Instant::now();
        (0..times).for_each(|_| work(backend));
        backend.finish();
        start.elapsed()
    };
    // Twice: both of two matrices that take turns.
    repeated(2);
    let mut repeats = 1;
    while repeated(repeats) < LONG {
        repeats *= 2;
    }
    let (began, mut least, mut times) = (Instant::now(), Duration::MAX, 0);
    while times < LEAST_TIMES || began.elapsed() < ENOUGH {
        least = least.min(repeated(repeats));
        times += 1;
    }
    least.as_secs_f64() / f64::from(repeats)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Cpu;

    #[test]
    fn a_machine_copies_and_multiplies_at_rates_that_machines_have() {
        let began = Instant::now();
        let floors = Floors::measure(&Cpu::new(Some(1)).unwrap(), Float::F32, 1);
        assert!((1e8..1e13).contains(&floors.bytes_per_second), "{floors:?}");
        assert!((1e9..1e15).contains(&floors.flops_per_second), "{floors:?}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}
