//! The collective operations, built on [`Transport::exchange`].
//!
//! # Sums
//!
//! The numbers are cut into one chunk per rank, which **owns** it. Each rank sends every owner its part of that owner's
//! chunk; the owner adds the contributions and sends the sum to all. This moves as many bytes as a ring does, `2 (n - 1) / n`
//! of the data per rank, but in 2 rounds instead of `2 (n - 1)`.
//!
//! In a world with reducers ([`Reducer`](super::Reducer)), these own the chunks instead of the ranks: each rank sends its numbers
//! once and receives the sums once, whatever the number of ranks.
//!
//! One owner alone adds each number, in an order given by the ranks: contribution `i` receives `i + s` for the strides `s` =
//! n/2, n/4, .., 1 (n rounded up to a power of two). So the sum has the same bits on all ranks and in every run. A sum
//! of up to [`SMALL_BYTES`] takes a single round: all ranks get all contributions and add them in that same order, with
//! the same bits.
//!
//! Numbers may travel in 16 bits. Each contribution is then rounded once, that of the owner too, so the result does not
//! depend on which rank owns a number; they are added in fp32, and the sum is rounded once.

use std::sync::Arc;
use std::time::Duration;

use zerocopy::IntoBytes;

use super::error::CollectiveError;
use super::memory::{Buffer, Element, Pool};
use super::recorder::Recorder;
use super::transport::{Deadline, Group, Label, Operation, Receive, Round, Transport};
use super::wire::{self, Code};
use crate::Float;
use crate::cpu::memory::LINE;
use crate::cpu::simd::Simd;

/// Sums of up to this many bytes on the wire take one round instead of two: what counts is latency.
const SMALL_BYTES: usize = 4096;

/// A type of numbers that can be added over all ranks.
pub trait Summand: Element {
    /// The operation, if the numbers are to travel as `wire`.
    fn operation(wire: Float) -> Operation;

    /// Adds `addends` to `sums`, element by element, as ranks add their contributions.
    fn accumulate(sums: &mut [Self], addends: &[Self]);

    /// The size of a number that travels as `wire`, in bytes.
    fn wire_bytes(wire: Float) -> usize;

    /// Writes numbers as they travel, each rounded once.
    ///
    /// # Panics
    /// If `encoded` is not memory of as many numbers, aligned to their size.
    fn encode(numbers: &[Self], wire: Float, encoded: &mut [u8]);

    /// The numbers that have travelled.
    ///
    /// # Panics
    /// As of [`Summand::encode`].
    fn decode(encoded: &[u8], wire: Float, numbers: &mut [Self]);

    /// Adds the numbers of all ranks, which must have equally many.
    ///
    /// # Errors
    /// As of every operation.
    fn sum(
        operations: &mut Operations,
        numbers: Buffer<Self>,
        wire: Float,
    ) -> Result<Buffer<Self>, CollectiveError>;
}

impl Summand for f32 {
    fn operation(wire: Float) -> Operation {
        Operation::Sum(wire)
    }

    fn accumulate(sums: &mut [Self], addends: &[Self]) {
        sums.iter_mut().zip(addends).for_each(|(sum, x)| *sum += x);
    }

    fn wire_bytes(wire: Float) -> usize {
        match wire {
            Float::F32 => size_of::<Self>(),
            Float::Bf16 | Float::F16 => size_of::<u16>(),
        }
    }

    fn encode(numbers: &[Self], wire: Float, encoded: &mut [u8]) {
        match wire {
            Float::F32 => encoded.copy_from_slice(numbers.as_bytes()),
            Float::Bf16 => wire::encode::<wire::Bf16>(Simd::detect(), numbers, encoded),
            Float::F16 => wire::encode::<wire::F16>(Simd::detect(), numbers, encoded),
        }
    }

    fn decode(encoded: &[u8], wire: Float, numbers: &mut [Self]) {
        match wire {
            Float::F32 => numbers.as_mut_bytes().copy_from_slice(encoded),
            Float::Bf16 => wire::decode::<wire::Bf16>(Simd::detect(), encoded, numbers),
            Float::F16 => wire::decode::<wire::F16>(Simd::detect(), encoded, numbers),
        }
    }

    fn sum(
        operations: &mut Operations,
        numbers: Buffer<Self>,
        wire: Float,
    ) -> Result<Buffer<Self>, CollectiveError> {
        match wire {
            Float::F32 => operations.sum_whole(numbers),
            Float::Bf16 => operations.sum_encoded::<wire::Bf16>(numbers),
            Float::F16 => operations.sum_encoded::<wire::F16>(numbers),
        }
    }
}

impl Summand for f64 {
    /// They always travel as they are.
    fn operation(_: Float) -> Operation {
        Operation::SumF64
    }

    fn accumulate(sums: &mut [Self], addends: &[Self]) {
        sums.iter_mut().zip(addends).for_each(|(sum, x)| *sum += x);
    }

    fn wire_bytes(_: Float) -> usize {
        size_of::<Self>()
    }

    fn encode(numbers: &[Self], _: Float, encoded: &mut [u8]) {
        encoded.copy_from_slice(numbers.as_bytes());
    }

    fn decode(encoded: &[u8], _: Float, numbers: &mut [Self]) {
        numbers.as_mut_bytes().copy_from_slice(encoded);
    }

    fn sum(
        operations: &mut Operations,
        numbers: Buffer<Self>,
        _: Float,
    ) -> Result<Buffer<Self>, CollectiveError> {
        operations.sum_whole(numbers)
    }
}

/// Runs operations over a transport.
pub struct Operations {
    transport: Box<dyn Transport>,
    recorder: Option<Recorder>,
    /// The time limit of an operation.
    limit: Duration,
    pool: Pool,
    simd: Simd,
    /// The operation under way.
    label: Label,
    deadline: Deadline,
}

impl Operations {
    pub(super) fn new(transport: Box<dyn Transport>, limit: Duration, recorder: Option<Recorder>) -> Self {
        let label = Label { operation: Operation::Connect, number: 0, round: Round::Only };
        Self {
            transport,
            recorder,
            limit,
            pool: Pool::default(),
            simd: Simd::detect(),
            label,
            deadline: Deadline::after(limit),
        }
    }

    /// Begins an operation, to which this rank passes `bytes`: it must end within the limit from now on.
    pub(super) fn begin(&mut self, operation: Operation, number: u64, bytes: usize) {
        if let Some(recorder) = &self.recorder {
            recorder.begin(operation, number, bytes);
        }
        self.label = Label { operation, number, round: Round::Only };
        self.deadline = Deadline::after(self.limit);
    }

    /// Ends the operation under way.
    pub(super) fn end(&self, has_succeeded: bool) {
        match &self.recorder {
            Some(recorder) if has_succeeded => recorder.end(self.label.number),
            Some(recorder) => recorder.fail(self.label.number),
            None => {}
        }
    }

    /// An exchange of the operation under way, among all ranks: into these buffers, one per rank, of exactly the sizes sent, or
    /// into any.
    fn exchange_round(
        &mut self,
        round: Round,
        parts: Vec<Arc<Buffer>>,
        into: Option<Vec<Buffer>>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        let label = Label { round, ..self.label };
        let receive = into.map_or(Receive::Any(&mut self.pool), Receive::Into);
        self.transport.exchange((label, Group::Ranks), parts, receive, self.deadline, self.recorder.as_ref())
    }

    /// Sends `parts[r]` to each rank `r`; returns what each rank sent to this one.
    pub(super) fn exchange<T: Element>(
        &mut self,
        mut parts: Vec<Buffer<T>>,
    ) -> Result<Vec<Buffer<T>>, CollectiveError> {
        let (rank, ranks) = (self.transport.rank(), self.transport.ranks());
        if parts.len() != ranks {
            return Err(self.argument(format!("{} parts for {ranks} ranks: pass one per rank", parts.len())));
        }
        let own = std::mem::take(&mut parts[rank]);
        let parts = parts.into_iter().map(|part| Arc::new(part.into_bytes())).collect();
        self.receive_elements(parts, own)
    }

    /// The parts of all ranks, by rank. Their sizes may differ.
    pub(super) fn gather<T: Element>(&mut self, part: Buffer<T>) -> Result<Vec<Buffer<T>>, CollectiveError> {
        let part = Arc::new(part.into_bytes());
        let received =
            self.receive_elements(vec![part.clone(); self.transport.ranks()], Buffer::default())?;
        self.with_own(received, part)
    }

    /// The data of rank `root`, whose size only that rank knows. The data of other ranks is dropped.
    pub(super) fn broadcast<T: Element>(
        &mut self,
        root: usize,
        data: Buffer<T>,
    ) -> Result<Buffer<T>, CollectiveError> {
        let (rank, ranks) = (self.transport.rank(), self.transport.ranks());
        if root >= ranks {
            return Err(
                self.argument(format!("there is no rank {root}: the world has ranks 0 to {}", ranks - 1))
            );
        }
        let data = Arc::new(if rank == root { data.into_bytes() } else { Buffer::default() });
        let received = self.receive_elements(vec![data.clone(); ranks], Buffer::default())?;
        Ok(self.with_own(received, data)?.swap_remove(root))
    }

    /// Returns after all ranks have called it.
    pub(super) fn barrier(&mut self) -> Result<(), CollectiveError> {
        let nothing = Arc::new(Buffer::default());
        let parts = vec![nothing; self.transport.ranks()];
        self.exchange_round(Round::Only, parts, None).map(|_| ())
    }

    fn sum_whole<T: Code + Element>(&mut self, numbers: Buffer<T>) -> Result<Buffer<T>, CollectiveError> {
        let sums = self.sum_codes::<T>(numbers.into_bytes())?;
        Ok(sums.try_into_elements().expect("the memory of the same numbers"))
    }

    fn sum_encoded<C: Code<Sum = f32>>(
        &mut self,
        mut numbers: Buffer<f32>,
    ) -> Result<Buffer<f32>, CollectiveError> {
        let mut encoded = self.pool.take(numbers.len() * size_of::<C>());
        wire::encode::<C>(self.simd, &numbers, &mut encoded);
        let sums = self.sum_codes::<C>(encoded)?;
        wire::decode::<C>(self.simd, &sums, &mut numbers);
        Ok(numbers)
    }

    fn sum_codes<C: Code>(&mut self, codes: Buffer) -> Result<Buffer, CollectiveError> {
        match (codes.len() <= SMALL_BYTES, self.transport.reducers()) {
            (true, _) => self.sum_small::<C>(codes),
            (false, 0) => self.sum_by_ranks::<C>(codes),
            (false, reducers) => self.sum_by_reducers::<C>(codes, reducers),
        }
    }

    /// All ranks get all contributions, and each adds them.
    fn sum_small<C: Code>(&mut self, codes: Buffer) -> Result<Buffer, CollectiveError> {
        let codes = Arc::new(codes);
        let into = self.buffers_for_others(codes.len());
        let parts = vec![codes.clone(); self.transport.ranks()];
        let received = self.exchange_round(Round::Only, parts, Some(into))?;
        let mut sums = released(codes);
        wire::add::<C>(self.simd, self.transport.rank(), &mut sums, &received);
        Ok(sums)
    }

    /// Each rank adds the contributions to its chunk, and sends the sums to all.
    fn sum_by_ranks<C: Code>(&mut self, codes: Buffer) -> Result<Buffer, CollectiveError> {
        let (rank, ranks) = (self.transport.rank(), self.transport.ranks());
        let chunk_bytes = chunk_bytes::<C>(codes.len(), ranks);
        let mut chunks = codes.split(&chunk_bytes);

        let mut own = std::mem::take(&mut chunks[rank]);
        let parts: Vec<Arc<Buffer>> = chunks.into_iter().map(Arc::new).collect();
        let into = self.buffers_for_others(own.len());
        let received = self.exchange_round(Round::Parts, parts.clone(), Some(into))?;
        wire::add::<C>(self.simd, rank, &mut own, &received);

        let own = Arc::new(own);
        let others = parts.into_iter().map(released).collect();
        let mut chunks = self.exchange_round(Round::Sums, vec![own.clone(); ranks], Some(others))?;
        chunks[rank] = released(own);
        Ok(Buffer::join(chunks))
    }

    /// Each reducer adds the contributions to its chunk, and returns the sums to all ranks.
    fn sum_by_reducers<C: Code>(
        &mut self,
        codes: Buffer,
        reducers: usize,
    ) -> Result<Buffer, CollectiveError> {
        let chunk_bytes = chunk_bytes::<C>(codes.len(), reducers);
        // Sums of the first reducers may arrive while numbers are still being sent to the last ones.
        let into = Receive::Into(self.pool.take(codes.len()).split(&chunk_bytes));
        let parts = codes.split(&chunk_bytes).into_iter().map(Arc::new).collect();
        let (to, recorder) = ((self.label, Group::Reducers), self.recorder.as_ref());
        Ok(Buffer::join(self.transport.exchange(to, parts, into, self.deadline, recorder)?))
    }

    /// A buffer for `bytes` bytes of each other rank.
    fn buffers_for_others(&mut self, bytes: usize) -> Vec<Buffer> {
        let (rank, ranks) = (self.transport.rank(), self.transport.ranks());
        let buffer = |peer| if peer == rank { Buffer::default() } else { self.pool.take(bytes) };
        (0..ranks).map(buffer).collect()
    }

    /// Exchanges parts; `own` takes this rank's own place.
    fn receive_elements<T: Element>(
        &mut self,
        parts: Vec<Arc<Buffer>>,
        own: Buffer<T>,
    ) -> Result<Vec<Buffer<T>>, CollectiveError> {
        let rank = self.transport.rank();
        let received = self.exchange_round(Round::Only, parts, None)?;
        let typed = received.into_iter().enumerate().map(|(peer, buffer)| self.elements(peer, buffer));
        let mut typed = typed.collect::<Result<Vec<_>, _>>()?;
        typed[rank] = own;
        Ok(typed)
    }

    fn with_own<T: Element>(
        &self,
        mut received: Vec<Buffer<T>>,
        own: Arc<Buffer>,
    ) -> Result<Vec<Buffer<T>>, CollectiveError> {
        let rank = self.transport.rank();
        received[rank] = self.elements(rank, released(own))?;
        Ok(received)
    }

    fn elements<T: Element>(&self, peer: usize, buffer: Buffer) -> Result<Buffer<T>, CollectiveError> {
        buffer.try_into_elements().map_err(|buffer| CollectiveError::Engine {
            label: self.label,
            peer,
            reason: format!("received {} bytes, no whole number of {}", buffer.len(), T::FORMAT),
        })
    }

    fn argument(&self, reason: String) -> CollectiveError {
        CollectiveError::Argument { label: self.label, reason }
    }
}

/// The bytes of each owner's chunk of a sum. Chunks start at cache lines of fp32 numbers.
fn chunk_bytes<C: Code>(bytes: usize, owners: usize) -> Vec<usize> {
    let chunk = bytes.div_ceil(owners).next_multiple_of(LINE * size_of::<C>());
    (0..owners).map(|owner| bytes.saturating_sub(owner * chunk).min(chunk)).collect()
}

/// A part that the transport has released, as its contract says.
fn released(part: Arc<Buffer>) -> Buffer {
    Arc::into_inner(part).expect("the transport has released all parts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_bytes_and_start_at_cache_lines() {
        for ranks in 1..9 {
            for numbers in [0, 1, 15, 16, 17, 1000, 1025, 4096] {
                let chunks = chunk_bytes::<f32>(numbers * 4, ranks);
                assert_eq!((chunks.len(), chunks.iter().sum::<usize>()), (ranks, numbers * 4));
                let end_of_full = chunks.iter().position(|bytes| bytes % 64 != 0).unwrap_or(ranks);
                assert!(
                    chunks.iter().skip(end_of_full + 1).all(|&bytes| bytes == 0),
                    "{numbers}: {chunks:?}"
                );
            }
        }
    }
}
