//! The images of a job's model, which outlive its workers.
//!
//! Workers copy the model into one of two files, in turn (`workers.image_seconds`). The daemon never reads them. It holds the
//! files and passes them to the workers of every attempt, which continue from the newer one if it is newer than all checkpoints.
//! The kernel frees their memory when the job ends, or the daemon does.
//!
//! Several workers also copy the model into such a file if the job keeps no images: for checkpoints. They get new files in each
//! attempt, because only checkpoints count then.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millstream_batch::shared_memory::anonymous_file;

use super::{StopReason, Supervisor};

/// The files of the images.
pub(super) struct Images([OwnedFd; 2]);

impl Images {
    /// Two images without content.
    ///
    /// # Errors
    /// If the system refuses a descriptor.
    pub(super) fn create() -> io::Result<Self> {
        let file = || anonymous_file(c"millstream-image");
        Ok(Self([file()?, file()?]))
    }

    /// The memory that they have now, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        // The unit of `st_blocks`, whatever the file system.
        const BLOCK_BYTES: u64 = 512;
        let of_file =
            |file: &OwnedFd| rustix::fs::fstat(file).map_or(0, |found| found.st_blocks.unsigned_abs());
        BLOCK_BYTES * self.0.iter().map(of_file).sum::<u64>()
    }

    /// The files.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; 2] {
        self.0.each_ref().map(AsFd::as_fd)
    }
}

impl Supervisor {
    /// Creates the images of a job that `has_images`, unless an earlier attempt has completed one. Otherwise the next one would
    /// rehearse its memory beside that of two images.
    pub(super) fn create_images(&mut self, has_images: bool) -> io::Result<()> {
        if has_images && self.control.vitals().image_step().is_none() {
            self.images = Some(Images::create()?);
        }
        Ok(())
    }

    /// Whether a stop has to wait for workers that save the newest image as a checkpoint.
    pub(super) fn saves_image(&self) -> bool {
        let saves = matches!(self.control.stop_requested(), Some(StopReason::Drain | StopReason::Pause));
        let vitals = self.control.vitals();
        saves && vitals.image_step() > vitals.checkpoint().map(|checkpoint| checkpoint.step)
    }

    /// The image of `step` is complete: progress, if it is new.
    pub(super) fn on_image(&mut self, step: u64) {
        if Some(step) > self.newest_step {
            self.newest_step = Some(step);
            self.on_progress();
        }
        self.control.vitals().set_image(Some(step));
    }
}
