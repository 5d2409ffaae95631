//! Writes one part in pieces of bounded size, hashing it on the way.

use std::io;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt};
use sha2::{Digest, Sha256};

use super::manifest::{PartEntry, hex};
use super::wait::{BlockOn, wait};

/// A part to write.
pub struct Part<'a> {
    /// Its name in the checkpoint.
    pub(super) name: String,
    write: WriteContent<'a>,
    /// Which of the processes that write the checkpoint writes it; 0 is the one that commits.
    pub(super) rank: usize,
}

/// Writes the content of a part, the same bytes every time.
type WriteContent<'a> = Box<dyn Fn(&mut dyn io::Write) -> io::Result<()> + 'a>;

/// Writes a part's bytes. The object appears at its path only at the end.
pub(super) struct PartWriter<'a> {
    objects: &'a Arc<dyn ObjectStore>,
    block_on: &'a BlockOn,
    path: Path,
    piece_bytes: usize,
    piece: Vec<u8>,
    upload: Option<Box<dyn MultipartUpload>>,
    digest: Digested,
}

/// Counts and hashes the bytes written to it.
#[derive(Default)]
pub(super) struct Digested {
    bytes: u64,
    hash: Sha256,
}

impl<'a> Part<'a> {
    /// A part that the committing process writes: its name and a function that writes its content, which must produce the same
    /// bytes every time.
    pub fn new(name: impl Into<String>, write: impl Fn(&mut dyn io::Write) -> io::Result<()> + 'a) -> Self {
        Self { name: name.into(), write: Box::new(write), rank: 0 }
    }

    /// The part if process `rank` writes it.
    pub(super) fn of_rank(self, rank: usize) -> Self {
        Self { rank, ..self }
    }

    /// The part's manifest entry.
    pub(super) fn digest(&self) -> io::Result<PartEntry> {
        let mut digest = Digested::default();
        (self.write)(&mut digest)?;
        Ok(digest.entry(&self.name))
    }
}

impl Digested {
    pub(super) fn entry(self, name: &str) -> PartEntry {
        PartEntry { name: name.to_owned(), bytes: self.bytes, sha256: hex::encode(&self.hash.finalize()) }
    }
}

impl io::Write for Digested {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> PartWriter<'a> {
    pub(super) fn new(
        objects: &'a Arc<dyn ObjectStore>,
        block_on: &'a BlockOn,
        path: Path,
        piece_bytes: usize,
    ) -> Self {
        let (piece, upload, digest) = (Vec::new(), None, Digested::default());
        Self { objects, block_on, path, piece_bytes, piece, upload, digest }
    }

    /// Writes `part`; the object is then visible and durable. On an error, uploaded pieces are deleted if the store
    /// supports it.
    pub(super) fn write_part(mut self, part: &Part<'_>) -> io::Result<PartEntry> {
        let written = (part.write)(&mut self).and_then(|()| self.send_rest());
        if written.is_err()
            && let Some(upload) = &mut self.upload
            && let Err(error) = wait(self.block_on, upload.abort())
        {
            tracing::debug!(path = %self.path, %error, "an unfinished upload could not be aborted");
        }
        written.map(|()| self.digest.entry(&part.name))
    }

    fn send_rest(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.piece);
        let Some(upload) = &mut self.upload else {
            wait(self.block_on, self.objects.put(&self.path, piece.into()))?;
            return Ok(());
        };
        if !piece.is_empty() {
            wait(self.block_on, upload.put_part(piece.into()))?;
        }
        wait(self.block_on, upload.complete())?;
        Ok(())
    }

    fn send_piece(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(self.piece_bytes));
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(wait(self.block_on, self.objects.put_multipart(&self.path))?),
        };
        wait(self.block_on, upload.put_part(piece.into()))?;
        Ok(())
    }
}

impl io::Write for PartWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() == self.piece_bytes {
            self.send_piece()?;
        }
        let taken = bytes.len().min(self.piece_bytes - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        self.digest.write_all(&bytes[..taken])?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
