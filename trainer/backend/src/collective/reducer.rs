//! Reducers: processes that add the numbers of all ranks for them.
//!
//! Without reducers, each rank of a world of `n` sends and receives `2 (n - 1) / n` of the data of a sum. With reducers it sends the
//! data once and receives it once: half as much in large worlds, at the price of other processes, which need neither the model nor
//! a GPU. For `r` reducers not to be slower than the ranks, their networks together must carry what those of the ranks do.
//!
//! Reducers take part in large sums only. They add in the same order as ranks do, so sums have the same bits with any number of
//! reducers. The idea is that of Reduction Server (Google Cloud, "Optimize training performance with Reduction Server on Vertex
//! AI", 2021).

use std::time::Duration;

use super::error::CollectiveError;
use super::memory::{Buffer, Pool};
use super::recorder::Recorder;
use super::transport::{Label, Operation};
use super::ucx::{Contributions, HostReducer};
use super::wire::{self, Bf16, Code, F16};
use crate::Float;
use crate::cpu::simd::Simd;

/// Adds the numbers of all ranks.
pub struct Reducer {
    transport: HostReducer,
    /// The time limit of a sum.
    limit: Duration,
    recorder: Option<Recorder>,
    pool: Pool,
    simd: Simd,
}

impl Reducer {
    /// A reducer whose sums must be complete within `limit` from when the first rank has begun them. With a recorder, they are
    /// recorded.
    pub fn new(transport: HostReducer, limit: Duration, recorder: Option<Recorder>) -> Self {
        Self { transport, limit, recorder, pool: Pool::default(), simd: Simd::detect() }
    }

    /// Adds until all ranks have left the world.
    ///
    /// # Errors
    /// If ranks send different things, one dies, or one has not sent its numbers in time.
    pub fn run(&mut self) -> Result<(), CollectiveError> {
        while self.add_next()? {}
        Ok(())
    }

    /// Receives, adds and answers the next sum. Returns false if there is none.
    fn add_next(&mut self) -> Result<bool, CollectiveError> {
        let recorder = self.recorder.as_ref();
        let Some(contributions) = self.transport.receive(self.limit, &mut self.pool, recorder)? else {
            return Ok(false);
        };
        let Contributions { label, deadline, numbers } = contributions;
        let sum = self.add(label, numbers);
        let recorder = self.recorder.as_ref();
        let answered = sum.and_then(|sum| self.transport.answer((label, deadline), sum, recorder));
        match (recorder, &answered) {
            (Some(recorder), Ok(())) => recorder.end(label.number),
            (Some(recorder), Err(_)) => recorder.fail(label.number),
            (None, _) => {}
        }
        answered.map(|()| true)
    }

    /// The sum of the numbers of all ranks.
    fn add(&self, label: Label, numbers: Vec<Buffer>) -> Result<Buffer, CollectiveError> {
        match label.operation {
            Operation::Sum(Float::F32) => self.add_codes::<f32>(label, numbers),
            Operation::Sum(Float::Bf16) => self.add_codes::<Bf16>(label, numbers),
            Operation::Sum(Float::F16) => self.add_codes::<F16>(label, numbers),
            Operation::SumF64 => self.add_codes::<f64>(label, numbers),
            _ => Err(CollectiveError::Argument { label, reason: "reducers only add".to_owned() }),
        }
    }

    fn add_codes<C: Code>(&self, label: Label, mut numbers: Vec<Buffer>) -> Result<Buffer, CollectiveError> {
        let expected = numbers[0].len();
        if let Some(peer) = numbers.iter().position(|numbers| numbers.len() != expected) {
            let (rank, sent) = (0, numbers[peer].len());
            return Err(CollectiveError::Size { label, rank, expected, peer, sent });
        }
        if !expected.is_multiple_of(size_of::<C>()) {
            let reason = format!("{expected} bytes are no whole number of numbers");
            return Err(CollectiveError::Argument { label, reason });
        }
        let mut sum = std::mem::take(&mut numbers[0]);
        wire::add::<C>(self.simd, 0, &mut sum, &numbers);
        Ok(sum)
    }
}
