//! How the tensors of a checkpoint are divided into files.
//!
//! The tensors of a role, one after the other, are one sequence of rows. A small model has one file per role,
//! `model.safetensors` and `optimizer.safetensors`; a large one has several of about equal size, so that several processes
//! can write them at the same time:
//!
//! ```text
//! model-00001-of-00003.safetensors    a [100], b [500, 16]: rows 0..500 of 900
//! model-00002-of-00003.safetensors    b [400, 16]: rows 500..900, c [300]: rows 0..300 of 650
//! model-00003-of-00003.safetensors    c [350]: rows 300..650
//! ```
//!
//! A tensor that continues in the next file has the same name in both. The number of files depends only on the
//! size of the model, so the bytes of a checkpoint do not depend on the processes that write it.

use std::ops::Range;

use super::{MODEL_PART, OPTIMIZER_PART};
use crate::model::{CopiedTensor, TensorRole};

/// The maximum size of the tensors in a file, unless there are [`MAX_FILES`].
pub(super) const FILE_BYTES: usize = 64 << 20;

/// The maximum number of files per role. Those of large models are larger.
const MAX_FILES: usize = 64;

/// The extension of all files of tensors.
const EXTENSION: &str = ".safetensors";

/// One of the files with the tensors of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorFileId {
    pub(super) role: TensorRole,
    /// From 0.
    pub(super) number: usize,
    /// How many files the role has.
    pub(super) count: usize,
}

/// A range of rows of a tensor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TensorSlice<'a> {
    pub(super) copied: &'a CopiedTensor,
    pub(super) rows: Range<usize>,
}

impl TensorFileId {
    /// The files of a role whose tensors have `bytes` bytes, of which a file should have `file_bytes`.
    pub(super) fn all(role: TensorRole, bytes: usize, file_bytes: usize) -> impl Iterator<Item = Self> {
        let count = bytes.div_ceil(file_bytes).clamp(1, MAX_FILES);
        (0..count).map(move |number| Self { role, number, count })
    }

    /// Its name in the checkpoint.
    pub(super) fn name(self) -> String {
        let Self { role, number, count } = self;
        let only = only_file(role);
        if count == 1 {
            return only.to_owned();
        }
        format!("{}-{:05}-of-{count:05}{EXTENSION}", stem(only), number + 1)
    }

    /// The file with this name; `None` if it has no tensors.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        [TensorRole::Parameter, TensorRole::OptimizerState].into_iter().find_map(|role| {
            let only = only_file(role);
            if name == only {
                return Some(Self { role, number: 0, count: 1 });
            }
            let numbers = name.strip_prefix(stem(only))?.strip_prefix('-')?.strip_suffix(EXTENSION)?;
            let (number, count) = numbers.split_once("-of-")?;
            let file = Self {
                role,
                number: number.parse::<usize>().ok()?.checked_sub(1)?,
                count: count.parse().ok()?,
            };
            (file.number < file.count && file.name() == name).then_some(file)
        })
    }

    /// The rows of `tensors` that the file contains. A tensor without rows is in the first file.
    pub(super) fn slices<'a>(
        self,
        tensors: impl Iterator<Item = &'a CopiedTensor> + Clone,
    ) -> Vec<TensorSlice<'a>> {
        let Self { role, number, count } = self;
        let tensors = tensors.filter(move |copied| copied.tensor.role == role);
        let all: usize = tensors.clone().map(|copied| copied.tensor.len()).sum();
        // A row is in the file in whose share of the numbers it starts.
        let [start, end] = [number, number + 1].map(|n| (all as u128 * n as u128 / count as u128) as usize);
        let mut before = 0;
        let slices = tensors.map(|copied| {
            let (rows, row) = (copied.rows(), copied.row.max(1));
            let [first, last] = [start, end].map(|at| at.saturating_sub(before).div_ceil(row).min(rows));
            before += copied.tensor.len();
            TensorSlice { copied, rows: first..last }
        });
        slices.filter(|slice| !slice.rows.is_empty() || (number == 0 && slice.copied.rows() == 0)).collect()
    }
}

impl TensorSlice<'_> {
    /// The shape of these rows.
    pub(super) fn shape(&self) -> Vec<usize> {
        let mut shape = self.copied.tensor.shape.clone();
        if self.rows.len() < self.copied.rows()
            && let Some(rows) = shape.first_mut()
        {
            *rows = self.rows.len();
        }
        shape
    }
}

/// The name of the only file of a role.
pub(super) fn only_file(role: TensorRole) -> &'static str {
    match role {
        TensorRole::Parameter => MODEL_PART,
        TensorRole::OptimizerState => OPTIMIZER_PART,
    }
}

fn stem(file: &str) -> &str {
    file.strip_suffix(EXTENSION).unwrap_or(file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::model::NamedTensor;

    fn tensor(name: &str, shape: &[usize], row: usize) -> CopiedTensor {
        let tensor = NamedTensor { name: name.into(), shape: shape.to_vec(), role: TensorRole::Parameter };
        CopiedTensor { tensor, first: 0, stride: row, row }
    }

    #[test]
    fn names_identify_files() {
        for role in [TensorRole::Parameter, TensorRole::OptimizerState] {
            for (bytes, count) in [(0, 1), (1, 1), (100, 1), (101, 2), (300, 3), (usize::MAX, 64)] {
                let files: Vec<_> = TensorFileId::all(role, bytes, 100).collect();
                assert_eq!(files.len(), count);
                for file in files {
                    assert_eq!(TensorFileId::of_name(&file.name()), Some(file));
                }
            }
        }
        let second = TensorFileId { role: TensorRole::OptimizerState, number: 1, count: 64 };
        assert_eq!(second.name(), "optimizer-00002-of-00064.safetensors");
        let others =
            ["job.toml", "model", "model-.safetensors", "model-1-of-2.safetensors", "modelx.safetensors"];
        let outside = ["model-00000-of-00002.safetensors", "model-00003-of-00002.safetensors"];
        let single = ["model-00001-of-00001.safetensors", "model-00001-of-00002.safetensors.bak"];
        for name in others.iter().chain(&outside).chain(&single) {
            assert_eq!(TensorFileId::of_name(name), None, "{name}");
        }
    }

    #[test]
    fn files_have_all_rows_once_in_order() {
        let tensors = [
            tensor("scalar", &[], 1),
            tensor("empty", &[0, 4], 4),
            tensor("vector", &[7], 7),
            tensor("rows", &[10], 1),
            tensor("table", &[25, 4], 4),
            tensor("none", &[0], 0),
            tensor("matrix", &[3, 5], 5),
        ];
        let whole: usize = tensors.iter().map(|copied| copied.tensor.len()).sum();
        for count in 1..=whole + 1 {
            let mut found: Vec<(String, Vec<usize>)> = Vec::new();
            for number in 0..count {
                let file = TensorFileId { role: TensorRole::Parameter, number, count };
                let slices = file.slices(tensors.iter());
                let numbers: usize = slices.iter().map(|slice| slice.shape().iter().product::<usize>()).sum();
                assert!(numbers.abs_diff(whole / count) <= 8, "{numbers} of {whole} in one of {count}");
                for slice in slices {
                    assert!(!slice.rows.is_empty() || number == 0);
                    found.push((slice.copied.tensor.name.clone(), slice.rows.collect()));
                }
            }
            for copied in &tensors {
                let pieces = found.iter().filter(|(name, _)| *name == copied.tensor.name);
                let rows: Vec<usize> = pieces.clone().flat_map(|(_, rows)| rows.clone()).collect();
                assert_eq!(rows, (0..copied.rows()).collect::<Vec<_>>());
                assert!(pieces.count() > 0, "{} is in a file", copied.tensor.name);
            }
            let others = TensorFileId { role: TensorRole::OptimizerState, number: 0, count: 1 };
            assert_eq!(others.slices(tensors.iter()), []);
        }
    }

    #[test]
    fn a_slice_has_the_shape_of_its_rows() {
        let (table, vector, scalar) = (tensor("t", &[6, 4], 4), tensor("v", &[6], 6), tensor("s", &[], 1));
        let shape = |copied, rows| TensorSlice { copied, rows }.shape();
        assert_eq!((shape(&table, 0..6), shape(&table, 2..5)), (vec![6, 4], vec![3, 4]));
        assert_eq!((shape(&vector, 0..1), shape(&scalar, 0..1)), (vec![6], vec![]));
    }
}
