//! Images: a model and its state after a step, in memory that outlives the process that trains it.
//!
//! An image costs a copy of the model, but no storage. The holder of its file passes it on to the next process, which continues
//! from the image instead of an older checkpoint. It has the content of a checkpoint, in an anonymous file:
//!
//! ```text
//! offset   0   magic            8 bytes, "millimag"; zeros while the image is incomplete
//!          8   version          u64, [`VERSION`]
//!         16   layout           u64, the start of a hash of the tensors' names, shapes and places
//!         24   number bytes     u64, n
//!         32   snapshot bytes   u64
//!       4096   numbers          of all tensors, as in a [`ModelCopy`](super::ModelCopy)
//!   4096 + n   snapshot         JSON, as in a manifest
//! ```
//!
//! All numbers are little-endian. The magic is erased before anything else changes, and written last. A process may be killed
//! at any instant: what it has written before stays, so an image with the magic is complete. To have a complete one always,
//! alternate between two.
//!
//! One process writes an image at a time, or several that train one model together: one of them makes the image incomplete, each
//! copies its [share](ImageShare) of the numbers, and when all have done so, the first one completes the image.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use millstream_backend::Backend;
use millstream_batch::shared_memory::SharedNumbers;
use sha2::{Digest, Sha256};

use super::CheckpointError;
use super::manifest::Snapshot;
use super::tensors::Element;
use crate::model::{CopiedTensor, Model};

/// What errors call the checkpoint that it is.
const PATH: &str = "in memory";

const MAGIC: u64 = u64::from_le_bytes(*b"millimag");

/// Changes whenever the layout above changes.
const VERSION: u64 = 1;

/// The first number starts here.
const FIRST: usize = 4096;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The fields at the start of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    layout: u64,
    number_bytes: u64,
    snapshot_bytes: u64,
}

impl Head {
    const BYTES: usize = 40;

    fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let fields = [MAGIC, VERSION, self.layout, self.number_bytes, self.snapshot_bytes];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// `None` if the image is incomplete, or of another version.
    fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (fields, _) = bytes.as_chunks();
        let field = |number: usize| u64::from_le_bytes(fields[number]);
        let is_complete = field(0) == MAGIC && field(1) == VERSION;
        is_complete.then(|| Self { layout: field(2), number_bytes: field(3), snapshot_bytes: field(4) })
    }

    /// Where the snapshot starts.
    fn snapshot_at(&self) -> u64 {
        (FIRST as u64).saturating_add(self.number_bytes)
    }
}

/// A complete image, to restore.
#[derive(Debug)]
pub struct Image {
    file: File,
    head: Head,
    snapshot: Snapshot,
}

impl Image {
    /// Opens an image; `None` if it is incomplete, of another version, or does not fit its size.
    ///
    /// # Errors
    /// When the system cannot read it.
    pub fn open(file: File) -> Result<Option<Self>, CheckpointError> {
        let size = file.metadata().map_err(failed)?.len();
        if size < FIRST as u64 {
            return Ok(None);
        }
        let mut head = [0; Head::BYTES];
        file.read_exact_at(&mut head, 0).map_err(failed)?;
        let Some(head) = Head::decode(&head) else { return Ok(None) };
        if head.snapshot_at().saturating_add(head.snapshot_bytes) > size {
            return Ok(None);
        }
        let mut json = vec![0; head.snapshot_bytes as usize];
        file.read_exact_at(&mut json, head.snapshot_at()).map_err(failed)?;
        let snapshot = serde_json::from_slice(&json).ok();
        Ok(snapshot.map(|snapshot| Self { file, head, snapshot }))
    }

    /// The state of training.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Checks that it has these tensors, as numbers of type `T`.
    pub(crate) fn check<T: Element>(&self, tensors: &[CopiedTensor]) -> Result<(), CheckpointError> {
        if self.head.layout == layout::<T>(tensors) {
            return Ok(());
        }
        let (path, part) = (PATH.to_owned(), "tensors".to_owned());
        Err(CheckpointError::Damaged { path, part, message: "are those of another model".to_owned() })
    }

    /// Reads a tensor of those that were [checked](Image::check).
    pub(crate) fn read<T: Element>(
        &self,
        copied: &CopiedTensor,
        numbers: &mut [T],
    ) -> Result<(), CheckpointError> {
        let &CopiedTensor { first, stride, row, .. } = copied;
        if numbers.is_empty() {
            return Ok(());
        }
        let rows_at_a_time = (PIECE_BYTES / (stride.max(1) * T::BYTES)).max(1);
        let mut bytes = Vec::new();
        for (piece, numbers) in numbers.chunks_mut(rows_at_a_time * row).enumerate() {
            let rows = numbers.len() / row;
            // The last row ends before its stride does.
            bytes.resize(((rows - 1) * stride + row) * T::BYTES, 0);
            let start = first + piece * rows_at_a_time * stride;
            self.file.read_exact_at(&mut bytes, (FIRST + start * T::BYTES) as u64).map_err(failed)?;
            for (numbers, bytes) in numbers.chunks_exact_mut(row).zip(bytes.chunks(stride * T::BYTES)) {
                T::copy_from_bytes(&bytes[..row * T::BYTES], numbers);
            }
        }
        Ok(())
    }
}

/// An image to write.
pub(crate) struct ImageWriter<T> {
    file: File,
    number: u32,
    layout: u64,
    numbers: SharedNumbers<T>,
    /// The step of the image; `None` while it is incomplete.
    step: Option<u64>,
}

impl<T: Element> ImageWriter<T> {
    /// Image `number` of `tensors`, of `length` numbers together, in `file`: an empty one, or one of an image, which then keeps
    /// its step if it is complete.
    pub(crate) fn open(
        (file, number): (File, u32),
        tensors: &[CopiedTensor],
        length: usize,
    ) -> Result<Self, CheckpointError> {
        let numbers = SharedNumbers::map(&file, FIRST, length).map_err(failed)?;
        let image = Image::open(file.try_clone().map_err(failed)?)?;
        let image = image.filter(|image| image.check::<T>(tensors).is_ok());
        let step = image.map(|image| image.snapshot.step);
        Ok(Self { file, number, layout: layout::<T>(tensors), numbers, step })
    }

    /// The step of the image, if it is complete.
    pub(crate) fn step(&self) -> Option<u64> {
        self.step
    }

    /// The number of the image.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn numbers(&self) -> &[T] {
        &self.numbers
    }

    /// The numbers, which may change after [`ImageWriter::begin`].
    pub(crate) fn numbers_mut(&mut self) -> &mut [T] {
        &mut self.numbers
    }

    /// A range of the numbers, which may change after [`ImageWriter::begin`], while other processes change other ranges.
    pub(crate) fn part_mut(&mut self, range: Range<usize>) -> &mut [T] {
        self.numbers.part_mut(range)
    }

    /// The count of numbers.
    pub(crate) fn len(&self) -> usize {
        self.numbers.count()
    }

    /// Lets the system allocate the pages before they are needed.
    pub(crate) fn populate(&mut self) {
        let all = 0..self.len();
        populate(&mut self.numbers, all);
    }

    /// Makes the image incomplete, and returns its number.
    pub(crate) fn begin(&mut self) -> Result<u32, CheckpointError> {
        self.step = None;
        self.file.write_all_at(&[0; Head::BYTES], 0).map_err(failed)?;
        Ok(self.number)
    }

    /// Completes the image with the numbers as they are.
    pub(crate) fn complete(&mut self, snapshot: &Snapshot) -> Result<(), CheckpointError> {
        let json = serde_json::to_vec(snapshot).map_err(io::Error::from).map_err(failed)?;
        let number_bytes = size_of_val(&self.numbers[..]) as u64;
        let head = Head { layout: self.layout, number_bytes, snapshot_bytes: json.len() as u64 };
        self.file.write_all_at(&json, head.snapshot_at()).map_err(failed)?;
        self.file.write_all_at(&head.encode(), 0).map_err(failed)?;
        self.step = Some(snapshot.step);
        Ok(())
    }
}

/// The part of an image that one of several workers copies, while another has the image as a [`ModelCopy`](super::ModelCopy).
pub struct ImageShare<T> {
    /// All numbers of the image: workers open it at the same time.
    numbers: SharedNumbers<T>,
    share: Range<usize>,
}

impl<T: Element> ImageShare<T> {
    /// The share of rank `rank` of `ranks` in an image of `length` numbers in `file`. Its pages are allocated, so that copies do
    /// not wait for that.
    pub(crate) fn open(
        file: &File,
        length: usize,
        (rank, ranks): (usize, usize),
    ) -> Result<Self, CheckpointError> {
        let share = share_of(length, rank, ranks);
        let mut numbers = SharedNumbers::map(file, FIRST, length).map_err(failed)?;
        populate(&mut numbers, share.clone());
        Ok(Self { numbers, share })
    }

    /// Copies this share of `model`. The image must be incomplete.
    pub(crate) fn copy<B: Backend<Scalar = T>>(&mut self, model: &mut Model<B>) {
        model.copy(self.share.start, self.numbers.part_mut(self.share.clone()));
    }
}

/// Lets the system allocate the pages of a range of an image's numbers.
fn populate<T: Element>(numbers: &mut SharedNumbers<T>, range: Range<usize>) {
    if let Err(error) = numbers.populate(range) {
        tracing::debug!(%error, "an image's pages are allocated when they are first written");
    }
}

/// The numbers that rank `rank` of `ranks` copies, of `length` numbers. All ranks have equally many, if that is possible.
pub(super) fn share_of(length: usize, rank: usize, ranks: usize) -> Range<usize> {
    let [start, end] = [rank, rank + 1].map(|rank| (length as u128 * rank as u128 / ranks as u128) as usize);
    start..end
}

/// The start of a hash of the places of `tensors`, as numbers of type `T`.
fn layout<T: Element>(tensors: &[CopiedTensor]) -> u64 {
    let hash = Sha256::digest(format!("{:?} {tensors:?}", T::DTYPE));
    let (words, _) = hash.as_chunks();
    u64::from_le_bytes(words[0])
}

fn failed(error: io::Error) -> CheckpointError {
    CheckpointError::Storage { path: PATH.to_owned(), error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_batch::shared_memory::anonymous_file;

    use super::*;

    #[test]
    fn heads_survive_their_encoding() {
        let head = Head { layout: 7, number_bytes: 1 << 40, snapshot_bytes: 3 };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Some(head));
        assert_eq!(head.snapshot_at(), (1 << 40) + 4096);
        for changed in 0..16 {
            let mut bytes = bytes;
            bytes[changed] ^= 1;
            assert_eq!(Head::decode(&bytes), None, "byte {changed}");
        }
    }

    #[test]
    fn shares_cover_all_numbers() {
        for ranks in [1, 2, 3, 64] {
            for length in [0, 1, 63, 1000, 1 << 50] {
                let shares: Vec<_> = (0..ranks).map(|rank| share_of(length, rank, ranks)).collect();
                assert_eq!((shares[0].start, shares[ranks - 1].end), (0, length));
                assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(shares.iter().all(|share| share.len().abs_diff(length / ranks) <= 1));
            }
        }
    }

    /// Workers open an image at the same time: one that wanted another size could shorten the file that another has extended.
    #[test]
    fn each_worker_extends_the_file_to_the_whole_image() {
        for rank in 0..3 {
            let file = File::from(anonymous_file(c"test").unwrap());
            ImageShare::<f32>::open(&file, 1000, (rank, 3)).unwrap();
            assert_eq!(
                file.metadata().unwrap().len(),
                (FIRST + 1000 * size_of::<f32>()) as u64,
                "rank {rank}"
            );
        }
    }

    #[test]
    fn files_without_an_image_have_none() {
        let file = tempfile::tempfile().unwrap();
        let open = |file: &File| Image::open(file.try_clone().unwrap()).unwrap();
        assert!(open(&file).is_none());
        file.set_len(FIRST as u64 + 8).unwrap();
        assert!(open(&file).is_none());
        for (number_bytes, snapshot_bytes) in [(0, 2), (8, 1), (0, u64::MAX), (u64::MAX, 0)] {
            let head = Head { layout: 0, number_bytes, snapshot_bytes };
            file.write_all_at(&head.encode(), 0).unwrap();
            assert!(open(&file).is_none(), "{head:?}");
        }
    }
}
