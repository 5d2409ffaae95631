//! Memory in anonymous files, which other processes can open by their descriptors.
//!
//! An anonymous file (`memfd_create`) has no name in any file system. The kernel frees its memory when the last process that
//! maps it or holds its descriptor exits, for whatever reason.

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A number type of which all bit patterns are valid.
pub trait Number: Copy + sealed::Sealed + Send + Sync + 'static {}

impl Number for f32 {}
impl Number for f64 {}

mod sealed {
    pub trait Sealed {}

    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// An empty anonymous file that can be sealed; not executable if the kernel supports that (6.3 or later). `/proc` shows
/// `name`.
///
/// # Errors
/// When the system is out of memory or descriptors.
pub fn anonymous_file(name: &CStr) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create(name, flags)?),
        result => Ok(result?),
    }
}

/// Numbers in an anonymous file, which several processes may map.
///
/// Nothing else writes the numbers of a reference while it exists. Other processes read them with `pread`, which is sound at any
/// time, and may write other [parts](SharedNumbers::part_mut).
pub struct SharedNumbers<T> {
    /// The start of the mapping.
    base: NonNull<u8>,
    mapped_bytes: usize,
    /// The place of the first number, in bytes from the start of the mapping.
    first: usize,
    number: PhantomData<T>,
}

// SAFETY: the value owns its mapping, which is valid in every thread of the process until `drop`.
unsafe impl<T: Number> Send for SharedNumbers<T> {}
// SAFETY: shared references only read.
unsafe impl<T: Number> Sync for SharedNumbers<T> {}

impl<T: Number> SharedNumbers<T> {
    /// Maps `count` numbers that start at byte `first` of an anonymous file. The file is extended with zeros to contain them,
    /// and sealed against shrinking. Processes that may map it at the same time must map numbers with the same end: otherwise one
    /// could shorten the file that another has extended.
    ///
    /// # Errors
    /// When it is not an anonymous file, or the system refuses the memory.
    ///
    /// # Panics
    /// If `first` is not a multiple of the size of a number.
    pub fn map(file: impl AsFd, first: usize, count: usize) -> io::Result<Self> {
        assert!(first.is_multiple_of(size_of::<T>()), "the numbers are aligned");
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let bytes = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(first));
        let mapped_bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(too_large)?.max(1);
        let size = rustix::fs::fstat(&file)?.st_size;
        if u64::try_from(size).unwrap_or(0) < mapped_bytes as u64 {
            rustix::fs::ftruncate(&file, mapped_bytes as u64)?;
        }
        // No access to the mapping can fault because the file has become shorter.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: with a null address and without `FIXED`, the kernel chooses an unused range: no existing memory is
        // affected.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), mapped_bytes, access, MapFlags::SHARED, file, 0)
        };
        let base = NonNull::new(base?.cast()).expect("the kernel maps null only on request");
        Ok(Self { base, mapped_bytes, first, number: PhantomData })
    }

    /// Lets the system allocate the pages of a range of the numbers and map them, so that later writes do not wait for that.
    ///
    /// # Errors
    /// When the system is out of memory, or its kernel cannot (before 5.14). The numbers can be used all the same.
    ///
    /// # Panics
    /// If the range is not within the numbers.
    pub fn populate(&mut self, range: Range<usize>) -> io::Result<()> {
        self.check(&range);
        let at = |number: usize| self.first + number * size_of::<T>();
        // The kernel wants the start of a page.
        let start = at(range.start) / rustix::param::page_size() * rustix::param::page_size();
        let bytes = if range.is_empty() { 0 } else { at(range.end) - start };
        // SAFETY: the range is within this value's mapping. The advice changes no contents.
        let populated = unsafe {
            let start = self.base.as_ptr().add(start);
            rustix::mm::madvise(start.cast(), bytes, Advice::LinuxPopulateWrite)
        };
        Ok(populated?)
    }

    /// A range of the numbers. Other processes may write other ranges at the same time.
    ///
    /// # Panics
    /// If the range is not within the numbers.
    pub fn part_mut(&mut self, range: Range<usize>) -> &mut [T] {
        self.check(&range);
        // SAFETY: as in `deref`, but only of a range of these numbers, which no other process writes. The borrow of `self` is
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start().add(range.start), range.len()) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.count(), "a range of the numbers");
    }

    /// How many numbers there are.
    pub fn count(&self) -> usize {
        self.mapped_bytes.saturating_sub(self.first) / size_of::<T>()
    }

    fn start(&self) -> *mut T {
        self.base.as_ptr().wrapping_add(self.first).cast()
    }
}

impl<T: Number> Deref for SharedNumbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping starts at a page, `first` is a multiple of a number's size, and `count` numbers follow. The borrow of
        // `self` keeps the mapping, and the seal the size of the file. All bit patterns are numbers. No other process writes these
        // while the reference exists.
        unsafe { std::slice::from_raw_parts(self.start(), self.count()) }
    }
}

impl<T: Number> DerefMut for SharedNumbers<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.count()) }
    }
}

impl<T> Drop for SharedNumbers<T> {
    fn drop(&mut self) {
        // SAFETY: only this value unmaps the range, which `mmap` returned, and all borrows of it have ended.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping an owned mapping succeeds");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn numbers_survive_their_mapping_and_are_read_without_one() {
        let file = File::from(anonymous_file(c"test").unwrap());
        let mut numbers = SharedNumbers::<f32>::map(&file, PAGE, 3).unwrap();
        assert_eq!(numbers[..], [0.0; 3]);
        numbers.copy_from_slice(&[1.0, -2.0, 0.5]);
        numbers.populate(0..3).unwrap();
        drop(numbers);
        let mut bytes = [0; 12];
        file.read_exact_at(&mut bytes, PAGE as u64).unwrap();
        assert_eq!(bytes[4..8], (-2.0_f32).to_le_bytes());
        // What follows the numbers stays.
        file.write_all_at(b"text", PAGE as u64 + 12).unwrap();
        let again = SharedNumbers::<f32>::map(&file, PAGE, 3).unwrap();
        assert_eq!(again[..], [1.0, -2.0, 0.5]);
        assert_eq!(file.metadata().unwrap().len(), PAGE as u64 + 16);
        assert!(file.set_len(PAGE as u64).is_err(), "the mapping needs the size");
        assert!(SharedNumbers::<f64>::map(&file, PAGE, 0).unwrap().is_empty());
    }

    #[test]
    fn parts_are_written_through_several_mappings() {
        let file = anonymous_file(c"test").unwrap();
        let mut all = SharedNumbers::<f32>::map(&file, PAGE, 4).unwrap();
        let mut again = SharedNumbers::<f32>::map(&file, PAGE, 4).unwrap();
        all.part_mut(0..2).copy_from_slice(&[1.0, 2.0]);
        again.part_mut(2..4).copy_from_slice(&[3.0, 4.0]);
        assert_eq!(all[..], [1.0, 2.0, 3.0, 4.0]);
        assert!(all.part_mut(4..4).is_empty());
    }

    #[test]
    fn parts_are_populated_from_within_a_page_on() {
        let file = File::from(anonymous_file(c"test").unwrap());
        let mut numbers = SharedNumbers::<f64>::map(&file, PAGE, 2 * PAGE).unwrap();
        numbers.part_mut(600..601)[0] = 5.0;
        // The second page of numbers, and a part of the third.
        numbers.populate(601..1025).unwrap();
        let pages = || rustix::fs::fstat(&file).unwrap().st_blocks as usize * 512 / PAGE;
        assert_eq!((numbers[600], pages()), (5.0, 2));
        numbers.populate(0..0).unwrap();
        assert_eq!(pages(), 2);
        numbers.populate(0..2 * PAGE).unwrap();
        assert_eq!(pages(), 16);
    }

    #[test]
    #[should_panic(expected = "a range of the numbers")]
    fn parts_are_within_the_numbers() {
        let file = anonymous_file(c"test").unwrap();
        SharedNumbers::<f32>::map(&file, PAGE, 4).unwrap().part_mut(1..5);
    }

    #[test]
    fn files_that_can_be_truncated_are_refused() {
        let named = File::options().read(true).write(true).open("/dev/null").unwrap();
        assert!(SharedNumbers::<f32>::map(&named, 0, 1).is_err());
        let file = anonymous_file(c"test").unwrap();
        let error = SharedNumbers::<f64>::map(&file, 0, usize::MAX).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
