//! Writes parameters as a safetensors file: a checkpoint's file plus a description of the model.
//!
//! The header's keys are sorted, so that equal models give equal bytes. Tensors are in the model's order, as
//! in the checkpoint.

use std::collections::BTreeMap;
use std::io::Write;

use safetensors::tensor::TensorInfo;
use serde::Serialize;

use super::{ExportError, TrainedModel};
use crate::checkpoint::tensors::{header_of, infos};

/// The maximum header size that the format's own readers accept.
const HEADER_BYTES: usize = 100_000_000;

/// The key of the description in a header.
const METADATA: &str = "__metadata__";

#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    Metadata(BTreeMap<String, String>),
    Tensor(TensorInfo),
}

/// Writes the parameters of `trained`; `added` are the caller's entries of the description.
///
/// # Errors
/// When the description is too long, or `out` fails.
pub fn write(
    trained: &TrainedModel,
    added: &[(String, String)],
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let header = header(trained, added)?;
    if header.len() > HEADER_BYTES {
        let (bytes, format) = (header.len(), "safetensors");
        return Err(ExportError::Description { bytes, format, limit: HEADER_BYTES });
    }
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for parameter in &trained.parameters {
        out.write_all(&parameter.data)?;
    }
    Ok(())
}

fn header(trained: &TrainedModel, added: &[(String, String)]) -> Result<Vec<u8>, ExportError> {
    let metadata = trained.description(added).into_iter().collect();
    let tensors = infos::<f32>(trained.parameters.iter().map(|parameter| &parameter.tensor)).into_iter();
    let tensors = tensors.map(|(name, info)| (name, Entry::Tensor(info)));
    let entries = tensors.chain([(METADATA.to_owned(), Entry::Metadata(metadata))]);
    Ok(header_of(&entries.collect::<BTreeMap<_, _>>())?)
}
