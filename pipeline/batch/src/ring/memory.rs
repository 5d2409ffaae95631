//! The shared memory of a ring and its byte layout.
//!
//! ```text
//! offset   0   magic         8 bytes, "millring"
//!          8   version       u32, [`VERSION`]
//!         12   slots         u32, n
//!         16   slot bytes    u64, a multiple of 256
//!         24   fingerprint   u64, of the schema: [`SlotLayout::fingerprint`]
//!         64   end mark      u32: 0 open, 1 finished
//!        128   state of slot 0     u32: 0 free, 1 filling, 2 + 4 b ready with batch b mod 2^30, 3 leased
//!        192   state of slot 1     each on its own cache line
//!        ...
//!    d         slot 0        as in [`crate::layout`]; d = 128 + 64 n, rounded up to 4096
//!    d + slot bytes          slot 1, and so on
//! ```
//!
//! The memory is an anonymous file (`memfd_create`): it has no name in any file system, and the kernel
//! reclaims it when the last process that maps it or holds its descriptor exits, for whatever reason.
//! It is sealed against shrinking, growing and further sealing before it is shared, so a mapping checked
//! once stays valid: no peer can make a read of a slot raise SIGBUS.
//!
//! Words that the other process may write at any time are accessed only as atomics. [`Memory::open`] reads
//! the first 32 bytes once; afterwards each end uses only values that it computed itself.

use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::RingError;
use super::state::{Control, Word};
use crate::layout::{ALIGNMENT, LayoutError, SlotLayout};
use crate::shared_memory::anonymous_file;

/// The most slots a ring can have.
pub const MAX_SLOTS: u32 = 4096;

const MAGIC: u64 = u64::from_ne_bytes(*b"millring");

/// Changes whenever the layout above or the layout of a slot changes.
const VERSION: u32 = 4;

/// The first slot starts at a multiple of this, so slots never share a page with the states.
const PAGE: usize = 4096;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The start of the memory, followed by the states.
#[repr(C)]
struct Head {
    magic: AtomicU64,
    version: AtomicU32,
    slots: AtomicU32,
    slot_bytes: AtomicU64,
    fingerprint: AtomicU64,
    end: Word,
}

const _: () = {
    assert!(offset_of!(Head, fingerprint) == 24);
    assert!(offset_of!(Head, end) == 64);
    assert!(size_of::<Head>() == 128 && size_of::<Word>() == 64);
};

/// Offsets and sizes within a ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    slots: usize,
    slot_bytes: usize,
    first_slot: usize,
    bytes: usize,
}

/// One process's mapping of a ring.
pub(super) struct Memory {
    base: NonNull<u8>,
    mapped_bytes: usize,
    geometry: Geometry,
}

// SAFETY: `Memory` owns its mapping, which is valid in every thread of the process until `drop`.
unsafe impl Send for Memory {}
// SAFETY: shared references access the words only as atomics, and the slots only through `slot` and `slot_mut`,
// whose callers guarantee that they own the slot.
unsafe impl Sync for Memory {}

impl Geometry {
    fn new(layout: &SlotLayout, slots: u32) -> Result<Self, RingError> {
        if !(1..=MAX_SLOTS).contains(&slots) {
            return Err(RingError::Slots(slots));
        }
        let slots = slots as usize;
        let slot_bytes = layout.slot_bytes();
        let first_slot = (size_of::<Head>() + slots * size_of::<Word>()).next_multiple_of(PAGE);
        let bytes = slots
            .checked_mul(slot_bytes)
            .and_then(|n| n.checked_add(first_slot))
            .filter(|&n| n <= isize::MAX as usize)
            .ok_or(LayoutError::TooLarge { rows: layout.schema().rows })?;
        Ok(Self { slots, slot_bytes, first_slot, bytes })
    }
}

impl Memory {
    /// Creates a ring's memory with all slots free, and the descriptor for mapping it in another process.
    pub(super) fn create(layout: &SlotLayout, slots: u32) -> Result<(Self, OwnedFd), RingError> {
        let geometry = Geometry::new(layout, slots)?;
        let fd = anonymous_file(c"millstream-ring")?;
        rustix::fs::ftruncate(&fd, geometry.bytes as u64).map_err(std::io::Error::from)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(std::io::Error::from)?;
        let memory = Self::map(&fd, geometry)?;
        let head = memory.head();
        head.magic.store(MAGIC, Ordering::Relaxed);
        head.version.store(VERSION, Ordering::Relaxed);
        head.slots.store(slots, Ordering::Relaxed);
        head.slot_bytes.store(geometry.slot_bytes as u64, Ordering::Relaxed);
        head.fingerprint.store(layout.fingerprint(), Ordering::Relaxed);
        Ok((memory, fd))
    }

    /// Maps a ring's memory created by another process, after checking that its slots have `layout`.
    pub(super) fn open(fd: &OwnedFd, layout: &SlotLayout) -> Result<Self, RingError> {
        let mismatch = |what: String| Err(RingError::Mismatch(what));
        match rustix::fs::fcntl_get_seals(fd) {
            Ok(seals) if seals.contains(SEALS) => {}
            Ok(_) => return mismatch("the memory is not sealed against resizing".into()),
            Err(Errno::INVAL) => return mismatch("the memory is not an anonymous file".into()),
            Err(error) => return Err(RingError::Os(error.into())),
        }
        // The seals fix the size from here on.
        let size = rustix::fs::fstat(fd).map_err(std::io::Error::from)?.st_size;
        let bytes = usize::try_from(size).unwrap_or(0);
        if bytes < PAGE {
            return mismatch(format!("{size} bytes are too small for a ring"));
        }
        let mut memory = Self::map(fd, Geometry { slots: 0, slot_bytes: 0, first_slot: PAGE, bytes })?;
        let head = memory.head();
        if head.magic.load(Ordering::Relaxed) != MAGIC {
            return mismatch("the memory does not start with the ring magic number".into());
        }
        let version = head.version.load(Ordering::Relaxed);
        if version != VERSION {
            return mismatch(format!("the ring has version {version}; expected {VERSION}"));
        }
        let slot_bytes = head.slot_bytes.load(Ordering::Relaxed);
        if slot_bytes != layout.slot_bytes() as u64 {
            return mismatch(format!("the slots have {slot_bytes} bytes; expected {}", layout.slot_bytes()));
        }
        let fingerprint = head.fingerprint.load(Ordering::Relaxed);
        if fingerprint != layout.fingerprint() {
            return mismatch(format!(
                "the schema has fingerprint {fingerprint:016x}; expected {:016x}",
                layout.fingerprint()
            ));
        }
        let slots = head.slots.load(Ordering::Relaxed);
        match Geometry::new(layout, slots) {
            Ok(geometry) if geometry.bytes == bytes => memory.geometry = geometry,
            _ => {
                return mismatch(format!(
                    "{slots} slots of {slot_bytes} bytes do not match a size of {bytes} bytes"
                ));
            }
        }
        Ok(memory)
    }

    /// The shared words.
    pub(super) fn control(&self) -> Control<'_> {
        // SAFETY: `Geometry::new` puts `slots` words after the head and before `first_slot`, within the mapping, and
        // `open` sets a geometry only if it matches the size of the file. The base is aligned to a page. Any bytes
        // are valid words, and both processes access them only as atomics. The borrow of `self` keeps the mapping.
        let slots = unsafe {
            let first = self.base.add(size_of::<Head>()).cast::<Word>();
            std::slice::from_raw_parts(first.as_ptr(), self.geometry.slots)
        };
        Control { end: &self.head().end, slots }
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.geometry.slots
    }

    /// The address range of the mapping.
    pub(super) fn addresses(&self) -> Range<*const u8> {
        let start = self.base.as_ptr().cast_const();
        start..start.wrapping_add(self.mapped_bytes)
    }

    /// The bytes of a slot, for reading.
    ///
    /// # Safety
    /// The caller must have leased `slot` and hold the lease for as long as it holds the bytes.
    pub(super) unsafe fn slot(&self, slot: usize) -> &[u8] {
        // SAFETY: `slot_start` is the start of `slot_bytes` bytes within the mapping, which the borrow of `self` keeps.
        // The caller holds the lease, so neither process writes them.
        unsafe { std::slice::from_raw_parts(self.slot_start(slot), self.geometry.slot_bytes) }
    }

    /// The bytes of a slot, for writing.
    ///
    /// # Safety
    /// The caller must have claimed `slot`, hold the claim for as long as it holds the bytes, and not call this
    /// again while it holds them.
    #[expect(clippy::mut_from_ref, reason = "the claim makes access exclusive")]
    pub(super) unsafe fn slot_mut(&self, slot: usize) -> &mut [u8] {
        // SAFETY: as in `slot`, and by the claim nothing else in either process reads or writes them.
        unsafe { std::slice::from_raw_parts_mut(self.slot_start(slot), self.geometry.slot_bytes) }
    }

    fn slot_start(&self, slot: usize) -> *mut u8 {
        let Geometry { slots, slot_bytes, first_slot, .. } = self.geometry;
        assert!(slot < slots, "no slot {slot}");
        const { assert!(PAGE.is_multiple_of(ALIGNMENT)) };
        self.base.as_ptr().wrapping_add(first_slot + slot * slot_bytes)
    }

    fn head(&self) -> &Head {
        // SAFETY: `create` and `open` map at least a page, which is larger than a head, at a page-aligned address. Any
        // bytes are a valid head, whose fields are atomics. The borrow of `self` keeps the mapping.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    fn map(fd: impl AsFd, geometry: Geometry) -> Result<Self, RingError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: with a null address and without `FIXED`, the kernel chooses an unused range: no existing memory is
        // affected.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), geometry.bytes, access, MapFlags::SHARED, fd, 0)
        };
        let base = base.map_err(std::io::Error::from)?;
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps null only on request");
        Ok(Self { base, mapped_bytes: geometry.bytes, geometry })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: only this value unmaps the range, `base` and `mapped_bytes` are those of `mmap`, and all borrows of
        // the mapping have ended.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping an owned mapping succeeds");
    }
}
