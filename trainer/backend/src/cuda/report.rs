//! Reports: values and faults of a step, copied to the host asynchronously.

use std::sync::Arc;

use millstream_batch::SlotLayout;

use super::Cuda;
use zerocopy::FromBytes;

use super::batch::CudaBatch;
use super::buffers::CudaMatrix;
use super::driver::{Address, Event, Memory, PageLocked};
use super::fault::must;
use super::kernels::{Faults, REPORT, REPORTED_MATRICES, Report};
use crate::error::BatchError;

/// Values on their way to the host, and the result of the batch's validation.
pub struct CudaReport {
    /// `Faults`, followed by the values.
    memory: Memory,
    host: PageLocked,
    arrived: Event,
    /// The batch's address and layout.
    batch: Option<(Address, Arc<SlotLayout>)>,
}

/// Size of a report of `numbers` values, in bytes.
pub(super) fn bytes(numbers: usize) -> usize {
    size_of::<Faults>() + numbers * size_of::<f32>()
}

impl CudaReport {
    pub(super) fn new(cuda: &Cuda, numbers: usize) -> Self {
        let bytes = bytes(numbers);
        Self {
            memory: cuda.memory(bytes),
            host: must(PageLocked::new(cuda.context(), bytes)),
            arrived: must(Event::new(cuda.context())),
            batch: None,
        }
    }
}

impl Cuda {
    pub(super) fn send_report(&self, batch: &CudaBatch, matrices: &[&CudaMatrix], report: &mut CudaReport) {
        assert!(matrices.len() <= REPORTED_MATRICES, "at most `REPORTED_MATRICES` matrices");
        let bytes = bytes(matrices.iter().map(|matrix| matrix.rows() * matrix.columns()).sum());
        assert!(bytes <= report.memory.bytes(), "a report large enough for all values");
        let part = |number: usize| matrices.get(number).map(|matrix| matrix.view()).unwrap_or_default();
        let rows = |number: usize| matrices.get(number).map_or(0, |matrix| matrix.rows() as u32);
        let arguments = Report {
            faults: self.faults.address(),
            out: report.memory.address(),
            parts: std::array::from_fn(part),
            rows: std::array::from_fn(rows),
        };
        self.launch_blocks(REPORT, [1, 1], &arguments);
        self.flush();
        // SAFETY: both buffers have at least `bytes` bytes, and the host reads its buffer only after waiting for
        // `arrived`.
        must(unsafe {
            self.stream.copy_to_host(&mut report.host.bytes_mut()[..bytes], report.memory.address())
        });
        must(report.arrived.record(&self.stream));
        report.batch = Some((batch.address(), Arc::clone(batch.layout())));
    }

    pub(super) fn receive_report(
        &self,
        report: &mut CudaReport,
        numbers: &mut [f32],
    ) -> Result<(), BatchError> {
        let (address, layout) = report.batch.take().expect("a report that was sent");
        self.wait_for(&report.arrived);
        let (faults, rest) = report.host.bytes_mut().split_at(size_of::<Faults>());
        for (number, bytes) in numbers.iter_mut().zip(rest.chunks_exact(size_of::<f32>())) {
            *number = f32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        }
        let found = Faults::read_from_bytes(faults).expect("the size split off above");
        let sound = found.of(address, &layout);
        if sound.is_err() {
            self.clear_faults();
        }
        sound
    }
}
