//! The images of a job's model, which outlive its workers.
//!
//! A worker copies the model into one of two files, in turn (`workers.image_seconds`). The daemon never reads them. It holds the
//! files and passes them to the workers of every attempt, which continue from the newer one if it is newer than all checkpoints.
//! The kernel frees their memory when the job ends, or the daemon does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millstream_batch::shared_memory::anonymous_file;

use super::Supervisor;

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

    /// The files.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; 2] {
        self.0.each_ref().map(AsFd::as_fd)
    }
}

impl Supervisor {
    /// Creates the images of a job that `has_images`, unless it has them from an earlier attempt.
    pub(super) fn create_images(&mut self, has_images: bool) -> io::Result<()> {
        if has_images && self.images.is_none() {
            self.images = Some(Images::create()?);
        }
        Ok(())
    }

    /// The image of `step` is complete: progress, if it is new.
    pub(super) fn on_image(&mut self, step: u64) {
        if Some(step) > self.newest_step {
            self.newest_step = Some(step);
            self.retries.reset();
        }
        self.control.vitals().set_image(Some(step));
    }
}
