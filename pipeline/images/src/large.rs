//! Large images are decoded few at a time.
//!
//! Most images are small, and all threads decode them at once. Memory for as many of the largest images that a column allows
//! would be a multiple of what is ever used.

use parking_lot::{Condvar, Mutex};

/// The number of pixels up to which an image is small: 724 x 724.
pub(crate) const SMALL_PIXELS: u64 = 1 << 19;

/// The places of large images that are decoded at a time.
#[derive(Debug)]
pub struct LargeImages {
    free: Mutex<u32>,
    freed: Condvar,
}

/// A place, until it is dropped.
pub(crate) struct Place<'a>(&'a LargeImages);

impl LargeImages {
    /// `places` places; at least one.
    pub fn new(places: u32) -> Self {
        Self { free: Mutex::new(places.max(1)), freed: Condvar::new() }
    }

    /// Waits for a free place. A thread that has one must not wait for another.
    pub(crate) fn take(&self) -> Place<'_> {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn no_more_than_the_places_are_taken_at_a_time() {
        let (large, taken) = (LargeImages::new(2), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _place = large.take();
                        assert!(taken.fetch_add(1, Ordering::SeqCst) < 2);
                        thread::yield_now();
                        taken.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
