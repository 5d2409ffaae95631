//! Rows of columns as bytes, for messages between processes: one stream of Arrow IPC for each batch.

use std::io::Cursor;

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;

/// Encodes rows, in pieces of at most `most_bytes`, unless a single row is larger. Returns the number of rows and the
/// bytes of each piece.
///
/// # Errors
/// A column has a type that Arrow IPC does not support.
pub fn encode(batch: &RecordBatch, most_bytes: usize) -> Result<Vec<(usize, Vec<u8>)>, ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema())?;
    writer.write(batch)?;
    let bytes = writer.into_inner()?;
    let rows = batch.num_rows();
    if bytes.len() <= most_bytes || rows < 2 {
        return Ok(vec![(rows, bytes)]);
    }
    let half = rows / 2;
    let mut pieces = encode(&batch.slice(0, half), most_bytes)?;
    pieces.extend(encode(&batch.slice(half, rows - half), most_bytes)?);
    Ok(pieces)
}

/// Decodes a piece of [`encode`].
///
/// # Errors
/// The bytes are anything else.
pub fn decode(bytes: &[u8]) -> Result<RecordBatch, ArrowError> {
    let missing = || ArrowError::IpcError("the stream has no rows".to_owned());
    StreamReader::try_new(Cursor::new(bytes), None)?.next().ok_or_else(missing)?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow_array::{ArrayRef, StringArray};
    use arrow_select::concat::concat_batches;

    use super::*;

    #[test]
    fn pieces_are_decoded_to_the_same_rows() {
        let texts: ArrayRef = Arc::new((0..1000).map(|n| Some("x".repeat(n % 50))).collect::<StringArray>());
        let batch = RecordBatch::try_from_iter_with_nullable([("a", texts, true)]).unwrap();
        let slice = batch.slice(100, 800);
        let pieces = encode(&slice, 4096).unwrap();
        assert!(pieces.len() > 4 && pieces.iter().all(|(_, bytes)| bytes.len() <= 4096));
        let decoded: Vec<RecordBatch> = pieces.iter().map(|(_, bytes)| decode(bytes).unwrap()).collect();
        assert!(decoded.iter().zip(&pieces).all(|(batch, (rows, _))| batch.num_rows() == *rows));
        assert_eq!(concat_batches(&slice.schema(), &decoded).unwrap(), slice);
        assert!(decode(b"").is_err() && decode(&pieces[0].1[..100]).is_err());
    }
}
