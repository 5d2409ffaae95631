//! A model as safetensors files: parameters in some, optimizer state in [others](super::files).
//!
//! A [`ModelCopy`] holds the numbers to write: a copy of all tensors, in the model's order, that training
//! does not modify. It is allocated once per job and filled for each checkpoint. Its memory is the process's own, or that of an
//! [image](super::image).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Deref;

use millstream_backend::{Backend, Scalar};
use millstream_batch::shared_memory::Number;
use safetensors::tensor::{Metadata, TensorInfo, TensorView};
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use super::CheckpointError;
use super::files::{TensorFileId, TensorSlice};
use super::image::{ImageWriter, share_of};
use super::manifest::Snapshot;
use crate::model::{CopiedTensor, Model, NamedTensor, TensorRole};

/// Numbers converted to bytes at a time.
const NUMBERS_AT_A_TIME: usize = 4096;

/// A backend's number type in its stored form.
pub trait Element: Scalar + Number {
    /// Its data type in safetensors.
    const DTYPE: Dtype;
    /// Its size in bytes.
    const BYTES: usize;
    /// Writes as many numbers as fit in `bytes`, little-endian.
    fn copy_to_bytes(numbers: &[Self], bytes: &mut [u8]);
    /// Reads as many numbers as `bytes` contains.
    fn copy_from_bytes(bytes: &[u8], numbers: &mut [Self]);
}

macro_rules! element {
    ($number:ty, $dtype:expr) => {
        impl Element for $number {
            const DTYPE: Dtype = $dtype;
            const BYTES: usize = size_of::<$number>();

            fn copy_to_bytes(numbers: &[Self], bytes: &mut [u8]) {
                let (stored, _) = bytes.as_chunks_mut();
                for (stored, number) in stored.iter_mut().zip(numbers) {
                    *stored = number.to_le_bytes();
                }
            }

            fn copy_from_bytes(bytes: &[u8], numbers: &mut [Self]) {
                let (stored, _) = bytes.as_chunks();
                for (number, &stored) in numbers.iter_mut().zip(stored) {
                    *number = Self::from_le_bytes(stored);
                }
            }
        }
    };
}

element!(f32, Dtype::F32);
element!(f64, Dtype::F64);

/// A copy of a model, in host memory.
pub struct ModelCopy<T> {
    /// The position of each tensor, in the model's order.
    tensors: Vec<CopiedTensor>,
    numbers: Numbers<T>,
}

/// The memory of a copy.
enum Numbers<T> {
    /// The process's own.
    Own(Vec<T>),
    /// That of an image.
    InImage(ImageWriter<T>),
}

impl<T: Element> ModelCopy<T> {
    /// Allocates a copy for `model`.
    pub(crate) fn of<B: Backend<Scalar = T>>(model: &mut Model<B>) -> Self {
        let (tensors, length) = model.copy_layout();
        Self { tensors, numbers: Numbers::Own(vec![T::default(); length]) }
    }

    /// A copy for `model` in the memory of an image, which keeps what it has.
    pub(crate) fn in_image<B: Backend<Scalar = T>>(
        model: &mut Model<B>,
        image: File,
        number: u32,
    ) -> Result<Self, CheckpointError> {
        let (tensors, length) = model.copy_layout();
        let image = ImageWriter::open((image, number), &tensors, length)?;
        Ok(Self { tensors, numbers: Numbers::InImage(image) })
    }

    /// Lets the system allocate its pages before they are needed. An image keeps what it has.
    pub(crate) fn touch(&mut self) {
        match &mut self.numbers {
            Numbers::Own(numbers) => numbers.fill(T::default()),
            Numbers::InImage(image) => image.populate(),
        }
    }

    /// Copies `model`, which must be the model that this copy was allocated for. An image then has no step until
    /// [`ModelCopy::complete`].
    pub(crate) fn copy<B: Backend<Scalar = T>>(
        &mut self,
        model: &mut Model<B>,
    ) -> Result<(), CheckpointError> {
        self.begin()?;
        match &mut self.numbers {
            Numbers::Own(numbers) => model.copy(0, numbers),
            Numbers::InImage(image) => model.copy(0, image.numbers_mut()),
        }
        Ok(())
    }

    /// Makes an image incomplete, and returns its number; `None` if the copy is not in one.
    pub(crate) fn begin(&mut self) -> Result<Option<u32>, CheckpointError> {
        match &mut self.numbers {
            Numbers::InImage(image) => image.begin().map(Some),
            Numbers::Own(_) => Ok(None),
        }
    }

    /// Copies the share of rank `rank` of `ranks` into an image, while others copy theirs.
    pub(crate) fn copy_share<B: Backend<Scalar = T>>(
        &mut self,
        model: &mut Model<B>,
        (rank, ranks): (usize, usize),
    ) {
        if let Numbers::InImage(image) = &mut self.numbers {
            let share = share_of(image.len(), rank, ranks);
            model.copy(share.start, image.part_mut(share));
        }
    }

    /// Completes an image with the rest of the state.
    pub(crate) fn complete(&mut self, snapshot: &Snapshot) -> Result<(), CheckpointError> {
        match &mut self.numbers {
            Numbers::InImage(image) => image.complete(snapshot),
            Numbers::Own(_) => Ok(()),
        }
    }

    /// The step of a complete image.
    pub(crate) fn image_step(&self) -> Option<u64> {
        match &self.numbers {
            Numbers::InImage(image) => image.step(),
            Numbers::Own(_) => None,
        }
    }

    /// The number of its image; `None` if the copy is not in one.
    pub(crate) fn image_number(&self) -> Option<u32> {
        match &self.numbers {
            Numbers::InImage(image) => Some(image.number()),
            Numbers::Own(_) => None,
        }
    }

    /// The files of its tensors, of which one should have `file_bytes`.
    pub(super) fn files(&self, file_bytes: usize) -> Vec<TensorFileId> {
        let of_role = |role| {
            let tensors = self.tensors.iter().filter(|copied| copied.tensor.role == role);
            let numbers: usize = tensors.map(|copied| copied.tensor.len()).sum();
            TensorFileId::all(role, numbers * T::BYTES, file_bytes)
        };
        of_role(TensorRole::Parameter).chain(of_role(TensorRole::OptimizerState)).collect()
    }

    /// Writes a file.
    pub(super) fn write(&self, file: TensorFileId, out: &mut dyn Write) -> io::Result<()> {
        let slices = file.slices(self.tensors.iter());
        let named =
            slices.iter().map(|slice| NamedTensor { shape: slice.shape(), ..slice.copied.tensor.clone() });
        let header = header::<T>(named.collect::<Vec<_>>().iter())?;
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        let mut bytes = Vec::new();
        for slice in slices {
            self.write_slice(slice, &mut bytes, out)?;
        }
        Ok(())
    }

    /// `bytes` is a conversion buffer that is reused for all tensors.
    fn write_slice(
        &self,
        TensorSlice { copied, rows }: TensorSlice<'_>,
        bytes: &mut Vec<u8>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let CopiedTensor { first, stride, row, .. } = copied;
        let rows_at_a_time = (NUMBERS_AT_A_TIME / row.max(&1)).max(1);
        for start in rows.clone().step_by(rows_at_a_time) {
            let block = start..rows.end.min(start + rows_at_a_time);
            bytes.resize(block.len() * row * T::BYTES, 0);
            for (r, bytes) in block.zip(bytes.chunks_exact_mut((row * T::BYTES).max(1))) {
                T::copy_to_bytes(&self.numbers[first + r * stride..][..*row], bytes);
            }
            out.write_all(bytes)?;
        }
        Ok(())
    }
}

impl<T: Element> Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Own(numbers) => numbers,
            Self::InImage(image) => image.numbers(),
        }
    }
}

/// The header of a file of these tensors.
fn header<'a, T: Element>(tensors: impl Iterator<Item = &'a NamedTensor>) -> io::Result<Vec<u8>> {
    header_of(&Metadata::new(None, infos::<T>(tensors)).map_err(io::Error::other)?)
}

/// The name, type, shape and offset of each tensor, one after the other.
pub(crate) fn infos<'a, T: Element>(
    tensors: impl Iterator<Item = &'a NamedTensor>,
) -> Vec<(String, TensorInfo)> {
    let mut end = 0;
    let infos = tensors.map(|tensor| {
        let start = end;
        end += tensor.len() * T::BYTES;
        let (dtype, shape) = (T::DTYPE, tensor.shape.clone());
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    infos.collect()
}

/// A header with this content, padded with spaces to align the tensors.
pub(crate) fn header_of(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut header = serde_json::to_vec(content)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// The safetensors files of a role, in memory.
pub(crate) struct TensorFiles<'a>(Vec<SafeTensors<'a>>);

impl<'a> TensorFiles<'a> {
    /// Opens `files`, in order, and checks that they contain exactly `tensors`, as numbers of type `T`.
    pub(crate) fn open<'t, T: Element>(
        files: impl IntoIterator<Item = &'a [u8]>,
        tensors: impl Iterator<Item = &'t NamedTensor>,
    ) -> Result<Self, String> {
        let opened = files.into_iter().map(SafeTensors::deserialize).collect::<Result<Vec<_>, _>>();
        let opened = Self(opened.map_err(|error| format!("is not safetensors: {error}"))?);
        let names = opened.0.iter().flat_map(SafeTensors::names);
        let mut surplus: BTreeSet<String> = names.map(str::to_owned).collect();
        for tensor in tensors {
            if !surplus.remove(&tensor.name) {
                return Err(format!("lacks tensor {} {:?}", tensor.name, tensor.shape));
            }
            if let Some(slice) = opened.slices(tensor).find(|slice| slice.dtype() != T::DTYPE) {
                return Err(differs::<T>(tensor, slice.dtype(), slice.shape()));
            }
            let shape = joined_shape(opened.slices(tensor));
            if shape != tensor.shape {
                return Err(differs::<T>(tensor, T::DTYPE, &shape));
            }
        }
        match surplus.first() {
            Some(name) => Err(format!("holds tensor {name}, which the model does not have")),
            None => Ok(opened),
        }
    }

    /// Copies a tensor that was passed to [`TensorFiles::open`] into `numbers`.
    pub(crate) fn copy<T: Element>(&self, tensor: &NamedTensor, numbers: &mut [T]) -> Result<(), String> {
        let bytes: usize = self.pieces(tensor).map(|(_, bytes)| bytes.len()).sum();
        if bytes != numbers.len() * T::BYTES {
            return Err(format!("holds {bytes} bytes of tensor {}", tensor.name));
        }
        let mut rest = numbers;
        for (_, bytes) in self.pieces(tensor) {
            let (numbers, after) = rest.split_at_mut(bytes.len() / T::BYTES);
            T::copy_from_bytes(bytes, numbers);
            rest = after;
        }
        Ok(())
    }

    /// A tensor's numbers in stored form: the number of each file that has some, and these.
    pub(crate) fn pieces(&self, tensor: &NamedTensor) -> impl Iterator<Item = (usize, &'a [u8])> {
        let files = self.0.iter().enumerate();
        files.filter_map(|(number, file)| Some((number, file.tensor(&tensor.name).ok()?.data())))
    }

    /// A tensor's rows in each file that has some.
    fn slices(&self, tensor: &NamedTensor) -> impl Iterator<Item = TensorView<'a>> {
        self.0.iter().filter_map(|file| file.tensor(&tensor.name).ok())
    }
}

/// The shape of a tensor with the rows of all `slices`, or that of a slice whose rows are unlike those before it.
fn joined_shape<'a>(mut slices: impl Iterator<Item = TensorView<'a>>) -> Vec<usize> {
    let mut shape = slices.next().map_or_else(Vec::new, |slice| slice.shape().to_vec());
    for slice in slices {
        match (shape.split_first_mut(), slice.shape().split_first()) {
            (Some((rows, row)), Some((more, same))) if row == same => *rows += more,
            _ => return slice.shape().to_vec(),
        }
    }
    shape
}

/// Says that the files have another tensor than the model.
fn differs<T: Element>(tensor: &NamedTensor, dtype: Dtype, shape: &[usize]) -> String {
    let NamedTensor { name, shape: wanted, .. } = tensor;
    format!("holds tensor {name} as {dtype} {shape:?}; the model has {} {wanted:?}", T::DTYPE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn tensor(name: &str, shape: &[usize]) -> NamedTensor {
        NamedTensor { name: name.into(), shape: shape.to_vec(), role: TensorRole::Parameter }
    }

    /// A file of f32 tensors, all numbers zero.
    fn file(tensors: &[NamedTensor]) -> Vec<u8> {
        let header = header::<f32>(tensors.iter()).unwrap();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.resize(bytes.len() + tensors.iter().map(|tensor| 4 * tensor.len()).sum::<usize>(), 0);
        bytes
    }

    #[test]
    fn numbers_round_trip_bit_by_bit() {
        let numbers = [0.0, -0.0, f32::MIN_POSITIVE / 4.0, f32::MAX, f32::from_bits(0x7fa0_0001), 0.1];
        let mut bytes = [0; 24];
        f32::copy_to_bytes(&numbers, &mut bytes);
        let mut back = [0.0; 6];
        f32::copy_from_bytes(&bytes, &mut back);
        assert_eq!(back.map(f32::to_bits), numbers.map(f32::to_bits));
    }

    #[test]
    fn a_file_must_contain_exactly_the_models_tensors() {
        let written = [tensor("a", &[2, 3]), tensor("b", &[]), tensor("c", &[0])];
        let bytes = file(&written);
        assert!(TensorFiles::open::<f32>([&bytes[..]], written.iter()).is_ok());
        let refusal = |tensors: &[NamedTensor]| match TensorFiles::open::<f32>([&bytes[..]], tensors.iter()) {
            Ok(_) => panic!("{tensors:?} accepted"),
            Err(message) => message,
        };
        assert_eq!(refusal(&written[..2]), "holds tensor c, which the model does not have");
        let renamed = [tensor("a", &[2, 3]), tensor("d", &[])];
        assert_eq!(refusal(&renamed), "lacks tensor d []");
        let turned = [tensor("a", &[3, 2])];
        assert_eq!(refusal(&turned), "holds tensor a as F32 [2, 3]; the model has F32 [3, 2]");
        let as_f64 = TensorFiles::open::<f64>([&bytes[..]], written.iter()).err().unwrap();
        assert_eq!(as_f64, "holds tensor a as F32 [2, 3]; the model has F64 [2, 3]");
        let cut = TensorFiles::open::<f32>([&bytes[..bytes.len() - 1]], written.iter()).err().unwrap();
        assert!(cut.starts_with("is not safetensors"), "{cut}");
    }

    #[test]
    fn a_tensor_may_continue_in_the_next_file() {
        let [first, second] =
            [&[tensor("a", &[2, 3]), tensor("b", &[4])][..], &[tensor("b", &[1])]].map(file);
        let files = [&first[..], &second];
        let open = |tensors: &[NamedTensor]| TensorFiles::open::<f32>(files, tensors.iter()).map(drop);
        assert_eq!(open(&[tensor("a", &[2, 3]), tensor("b", &[5])]), Ok(()));
        let error = open(&[tensor("a", &[2, 3]), tensor("b", &[4])]).unwrap_err();
        assert_eq!(error, "holds tensor b as F32 [5]; the model has F32 [4]");
        let whole = TensorFiles::open::<f32>([&first[..]], [tensor("a", &[2, 3]), tensor("b", &[5])].iter());
        assert_eq!(whole.err().unwrap(), "holds tensor b as F32 [4]; the model has F32 [5]");
        let other_width = file(&[tensor("a", &[1, 2])]);
        let joined = TensorFiles::open::<f32>([&first[..], &other_width], [tensor("a", &[3, 3])].iter());
        assert_eq!(joined.err().unwrap(), "holds tensor a as F32 [1, 2]; the model has F32 [3, 3]");
    }
}
