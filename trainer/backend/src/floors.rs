//! The peak rates of a device, measured with its own operations: the roofs against which other operations are
//! compared.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::device::WorkspaceUse;
use crate::float::Float;
use crate::ops::{Activation, CopyRows, LayerForward};

/// Columns of the matrices, and inputs and outputs of the multiplied layer.
const SIDE: usize = 1024;

/// Rows of the copied matrix at the smallest size: 64 MiB.
const COPIED_ROWS: usize = 16 << 10;

/// Rows of the multiplied matrix at the smallest size.
const MULTIPLIED_ROWS: usize = 2 * SIDE;

/// How long each measurement is repeated.
const ENOUGH: Duration = Duration::from_millis(120);

/// The least number of measurements, not counting the first, which touches the memory for the first time.
const LEAST_TIMES: u32 = 3;

/// Work is repeated until it takes this long between synchronizations: waiting for a device takes a few percent of
/// it.
const LONG: Duration = Duration::from_millis(4);

/// A device's peak rates, which bound the time of an operation from below: the rates of a copy and of a matrix
/// product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Floors {
    /// Bytes read and written by a copy of matrices of 64 MiB or more, per second.
    pub bytes_per_second: f64,
    /// FLOPs per second of a layer of 1024 inputs and outputs over 2048 rows or more, in the format of the
    /// activations.
    pub flops_per_second: f64,
}

impl Floors {
    /// Measures `backend`, for activations of the format `float`, with matrices of `size` times the smallest size;
    /// returns the best of several runs.
    pub(crate) fn measure<B: Backend>(backend: &B, float: Float, size: usize) -> Self {
        let (copied_rows, multiplied_rows) = (size * COPIED_ROWS, size * MULTIPLIED_ROWS);
        let [mut from, mut to] = [copied_rows; 2].map(|rows| backend.matrix(rows, SIDE));
        let bytes = 2 * copied_rows * SIDE * B::matrix_shape(&from).number_bytes;
        let copy = best(backend, |backend| {
            backend.run(CopyRows { rows: copied_rows, from: (&from, 0), to: (&mut to, 0) });
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

    /// The higher of each rate.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            bytes_per_second: self.bytes_per_second.max(other.bytes_per_second),
            flops_per_second: self.flops_per_second.max(other.flops_per_second),
        }
    }
}

/// The shortest time of `work` in seconds.
fn best<B: Backend>(backend: &B, mut work: impl FnMut(&B)) -> f64 {
    let mut repeated = |times: u32| {
        let start = Instant::now();
        (0..times).for_each(|_| work(backend));
        backend.finish();
        start.elapsed()
    };
    // Warm up twice: once for each of two matrices that alternate.
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
