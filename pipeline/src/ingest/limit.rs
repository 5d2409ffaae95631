//! The limit of a window whose rows vary in size.
//!
//! Encoded images and documents of tokens have any size. Memory is planned for usual ones, so a window of larger ones is
//! an error that says what to change.

use millstream_batch::{Count, Size};

use crate::chunk::Chunk;
use crate::error::Error;
use crate::sequences::SequenceColumns;

/// Counts the memory of the chunks of a window.
pub(crate) struct WindowMeter<'a> {
    /// The most bytes; `None` if rows do not vary in size.
    most_bytes: Option<u64>,
    /// Set if rows are documents; others have images.
    sequences: Option<&'a SequenceColumns>,
    rows: u64,
    bytes: u64,
}

impl<'a> WindowMeter<'a> {
    pub(crate) fn new(most_bytes: Option<u64>, sequences: Option<&'a SequenceColumns>) -> Self {
        Self { most_bytes, sequences, rows: 0, bytes: 0 }
    }

    /// Adds a chunk.
    ///
    /// # Errors
    /// The window needs more memory than is planned.
    pub(crate) fn add(&mut self, chunk: &Chunk) -> Result<(), Error> {
        let Some(most_bytes) = self.most_bytes else { return Ok(()) };
        let rows = chunk.rows() as u64;
        self.rows += rows;
        self.bytes += match self.sequences {
            Some(sequences) => sequences.held_bytes(rows, chunk.ragged_bytes() / sequences.token_bytes()),
            None => chunk.image_bytes(),
        };
        if self.bytes <= most_bytes { Ok(()) } else { Err(self.excess(most_bytes)) }
    }

    fn excess(&self, most_bytes: u64) -> Error {
        // A quarter more than was found.
        let average = |unit: u64| (self.bytes / self.rows.max(1) * 5 / 4).div_ceil(unit).max(1);
        let (what, advice) = match self.sequences {
            None => ("images", format!("`average_bytes` of the column to at least {}", average(1))),
            Some(sequences) => {
                let tokens = average(sequences.token_bytes());
                ("documents", format!("`average` of the columns of tokens to at least {tokens}"))
            }
        };
        Error::Invalid(format!(
            "the {what} of {} need {}, and memory for a window is planned for {}: set {advice}, and lower shuffle_rows \
             or raise memory_budget if memory does not suffice then",
            Count(self.rows, "row"),
            Size(self.bytes),
            Size(most_bytes),
        ))
    }
}
