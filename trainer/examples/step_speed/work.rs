//! The minimum work of a step, and the machine's peak rates.

use std::error::Error;
use std::time::Instant;

use millstream_backend::{Activation, Backend, Cpu, Device, ops};
use millstream_batch::{BatchSchema, Lease};

use crate::options::{Kind, Options};
use crate::shapes::{CATEGORICAL, DENSE, DIN_ATTENTION, DIN_VALUES, MLPERF_CROSS, schema};

/// The minimum work of an example, on average.
pub(crate) struct Work {
    pub(crate) flops: f64,
    pub(crate) bytes: f64,
    /// Ids looked up and distinct table rows touched per example; distinct within a batch.
    pub(crate) ids: f64,
    pub(crate) rows: f64,
}

impl Work {
    pub(crate) fn of(options: &Options, batches: &[Lease]) -> Self {
        let (dim, width) = (f64::from(options.dim), CATEGORICAL as f64 * f64::from(options.dim));
        let (top, vectors) = (options.top(), 1.0 + CATEGORICAL as f64);
        let bottom = || {
            let outputs = [&options.bottom[..], &[options.dim]].concat();
            // The input's dense columns need no gradient.
            layers_flops(DENSE as f64, &outputs) - 2.0 * DENSE as f64 * f64::from(outputs[0])
        };
        // The wide part has an additional table of one weight per id.
        let (flops, wide) = match options.kind {
            Kind::WideDeep => {
                let masked = 2.0 * DENSE as f64 * f64::from(top[0]);
                (layers_flops(width + DENSE as f64, &top) - masked, 1.0)
            }
            Kind::Din => {
                let attention = f64::from(DIN_VALUES) * layers_flops(4.0 * dim, &[DIN_ATTENTION, 1]);
                let masked = 2.0 * DENSE as f64 * f64::from(top[0]);
                (attention + layers_flops(2.0 * dim + DENSE as f64, &top) - masked, 0.0)
            }
            Kind::Dlrm => {
                let pairs = vectors * (vectors - 1.0) / 2.0;
                (bottom() + 6.0 * pairs * dim + layers_flops(dim + pairs, &top), 0.0)
            }
            Kind::Mlperf => {
                let (layers, rank) = (MLPERF_CROSS.layers, MLPERF_CROSS.rank.unwrap_or_default());
                let cross = 2.0 * 6.0 * vectors * dim * f64::from(rank) * f64::from(layers);
                (bottom() + cross + layers_flops(vectors * dim, &top), 0.0)
            }
        };
        // A row is read in the forward pass, then it and its accumulators are read and written.
        let of_row = |weight_bytes: usize| (3 * weight_bytes + 2 * size_of::<f32>()) as f64;
        let row = dim * of_row(options.weight_bytes()) + wide * of_row(size_of::<f32>());
        let examples = batches.len() as f64 * f64::from(options.batch);
        let schema = schema(options);
        let columns = || batches.iter().flat_map(|leased| columns(leased, &schema));
        let rows = columns().map(distinct).sum::<usize>() as f64 / examples;
        let ids = columns().map(<[u32]>::len).sum::<usize>() as f64 / examples;
        let batch = (1 + DENSE) as f64 + ids;
        Self { flops, bytes: row * rows + 4.0 * batch, ids, rows }
    }
}

/// FLOPs of the forward pass, and twice that for the backward pass.
fn layers_flops(inputs: f64, outputs: &[u32]) -> f64 {
    let (mut inputs, mut flops) = (inputs, 0.0);
    for &outputs in outputs {
        flops += 6.0 * inputs * f64::from(outputs);
        inputs = f64::from(outputs);
    }
    flops
}

/// The ids of each feature of a batch.
fn columns<'a>(leased: &'a Lease, schema: &BatchSchema) -> impl Iterator<Item = &'a [u32]> + use<'a> {
    let batch = leased.batch();
    let single = (0..schema.ids.len()).map(move |feature| batch.ids(feature));
    single.chain((0..schema.ragged.len()).map(move |feature| batch.ragged(feature).1))
}

/// The number of distinct ids.
fn distinct(ids: &[u32]) -> usize {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

/// The machine's peak rates per second, on a number of threads.
pub(crate) struct Rates {
    /// Matrix products by the library.
    pub(crate) flops: f64,
    /// Matrix products by our kernels.
    pub(crate) fastest: f64,
    /// Memory read and written.
    pub(crate) bytes: f64,
}

impl Rates {
    pub(crate) fn measure(threads: u32) -> Result<Self, Box<dyn Error>> {
        let (library, fastest) = (Cpu::new(Some(threads))?.without_tiles(), Cpu::new(Some(threads))?);
        Ok(Self {
            flops: products_per_second(&library),
            fastest: products_per_second(&fastest),
            bytes: bytes_per_second(threads as usize),
        })
    }

    /// Examples per second.
    pub(crate) fn floor(&self, work: &Work) -> f64 {
        1.0 / (work.flops / self.flops + work.bytes / self.bytes)
    }
}

/// The rate of matrix products of a suitable size, in FLOP/s.
fn products_per_second(backend: &Cpu) -> f64 {
    const N: usize = 1024;
    let (input, weights) = (backend.matrix(N, N), backend.matrix(N, N));
    let (bias, mut output) = (backend.matrix(1, N), backend.matrix(N, N));
    let best = best_of(20, || {
        backend.run(ops::LayerForward {
            rows: N,
            input: &input,
            weights: &weights,
            bias: Some(&bias),
            activation: Activation::Identity,
            output: &mut output,
        });
    });
    2.0 * (N * N * N) as f64 / best
}

/// The memory bandwidth of all threads together, each with separate memory that exceeds the caches.
fn bytes_per_second(threads: usize) -> f64 {
    const NUMBERS: usize = 64 << 20;
    let mut memory = vec![1.0_f32; NUMBERS];
    let best = best_of(5, || {
        std::thread::scope(|scope| {
            for part in memory.chunks_mut(NUMBERS.div_ceil(threads)) {
                scope.spawn(|| part.iter_mut().for_each(|x| *x = *x * 0.5 + 1.0));
            }
        });
    });
    2.0 * 4.0 * NUMBERS as f64 / best
}

fn best_of(runs: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..runs).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}
