//! The memory both ends map, and its bytes.
//!
//! ```text
//! offset   0   magic         8 bytes, "millring"
//!          8   version       u32, [`VERSION`]
//!         12   slots         u32, n
//!         16   slot bytes    u64, a multiple of 256
//!         24   fingerprint   u64, of the schema: [`SlotLayout::fingerprint`]
//!         64   end mark      u32: 0 open, 1 finished
//!        128   state of slot 0     u32: 0 free, 1 filling, 2 ready, 3 leased
//!        192   state of slot 1     each on a cache line of its own
//!        ...
//!    d         slot 0        as in [`crate::layout`]; d = 128 + 64 n, rounded up to 4096
//!    d + slot bytes          slot 1, and so on
//! ```
//!
//! The memory is an anonymous file (`memfd_create`): it has no name in any file system, and the kernel
//! reclaims it when the last process that maps it or holds its descriptor has gone, however it went.
//! It is sealed against shrinking, growing and further sealing before anybody else sees it, so that a
//! mapping checked once stays valid: no peer can turn a read of a slot into a SIGBUS.
//!
//! Words that the other process may write at any time are only ever touched as atomics. The first 32
//! bytes are read once, by [`Memory::open`]; from then on an end goes by what it has computed itself.

use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::RingError;
use super::state::{Control, Word};
use crate::layout::{ALIGNMENT, LayoutError, SlotLayout};

/// The most slots a ring can have.
pub const MAX_SLOTS: u32 = 4096;

const MAGIC: u64 = u64::from_ne_bytes(*b"millring");

/// Changes whenever the bytes above, or those of a slot, change their meaning.
const VERSION: u32 = 1;

/// Slots start at a multiple of this, so that they never share a page with the states.
const PAGE: usize = 4096;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The start of the memory. The states follow.
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

/// Where things lie in a ring's memory.
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

// SAFETY: `Memory` owns its mapping, which is valid from any thread. What lies in it is reached through
// atomics, or through `slot` and `slot_mut`, whose callers promise to own the slot.
unsafe impl Send for Memory {}
// SAFETY: as above.
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
    /// Makes a ring's memory, every slot free, and the descriptor by which another process maps it.
    pub(super) fn create(layout: &SlotLayout, slots: u32) -> Result<(Self, OwnedFd), RingError> {
        let geometry = Geometry::new(layout, slots)?;
        let fd = anonymous_file()?;
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

    /// Maps a ring's memory that another process made, if it is one of slots of `layout`.
    pub(super) fn open(fd: &OwnedFd, layout: &SlotLayout) -> Result<Self, RingError> {
        let mismatch = |what: String| Err(RingError::Mismatch(what));
        match rustix::fs::fcntl_get_seals(fd) {
            Ok(seals) if seals.contains(SEALS) => {}
            Ok(_) => return mismatch("the memory is not sealed against resizing".into()),
            Err(Errno::INVAL) => return mismatch("the memory is not an anonymous file".into()),
            Err(error) => return Err(RingError::Os(error.into())),
        }
        // From here on the size is fixed.
        let size = rustix::fs::fstat(fd).map_err(std::io::Error::from)?.st_size;
        let bytes = usize::try_from(size).unwrap_or(0);
        if bytes < PAGE {
            return mismatch(format!("{size} bytes are too few for a ring"));
        }
        let mut memory = Self::map(fd, Geometry { slots: 0, slot_bytes: 0, first_slot: PAGE, bytes })?;
        let head = memory.head();
        if head.magic.load(Ordering::Relaxed) != MAGIC {
            return mismatch("it does not begin with a ring's magic number".into());
        }
        let version = head.version.load(Ordering::Relaxed);
        if version != VERSION {
            return mismatch(format!("it has version {version}, this program has {VERSION}"));
        }
        let slot_bytes = head.slot_bytes.load(Ordering::Relaxed);
        if slot_bytes != layout.slot_bytes() as u64 {
            return mismatch(format!("its slots have {slot_bytes} bytes, not {}", layout.slot_bytes()));
        }
        let fingerprint = head.fingerprint.load(Ordering::Relaxed);
        if fingerprint != layout.fingerprint() {
            return mismatch(format!(
                "its schema has fingerprint {fingerprint:016x}, not {:016x}",
                layout.fingerprint()
            ));
        }
        let slots = head.slots.load(Ordering::Relaxed);
        match Geometry::new(layout, slots) {
            Ok(geometry) if geometry.bytes == bytes => memory.geometry = geometry,
            _ => return mismatch(format!("{slots} slots of {slot_bytes} bytes do not make {bytes} bytes")),
        }
        Ok(memory)
    }

    /// The shared words.
    pub(super) fn control(&self) -> Control<'_> {
        // SAFETY: `size_of::<Head>() + slots * size_of::<Word>()` is within the mapping by construction
        // of the geometry; the base is aligned to a page; any bytes are valid words, which are atomics.
        let slots = unsafe {
            let first = self.base.add(size_of::<Head>()).cast::<Word>();
            std::slice::from_raw_parts(first.as_ptr(), self.geometry.slots)
        };
        Control { end: &self.head().end, slots }
    }

    /// Slots of the ring.
    pub(super) fn slots(&self) -> usize {
        self.geometry.slots
    }

    /// Where the mapping begins and ends.
    pub(super) fn addresses(&self) -> Range<*const u8> {
        let start = self.base.as_ptr().cast_const();
        start..start.wrapping_add(self.mapped_bytes)
    }

    /// The bytes of a slot, to read.
    ///
    /// # Safety
    /// The caller has leased `slot` and keeps the lease for as long as it keeps the bytes.
    pub(super) unsafe fn slot(&self, slot: usize) -> &[u8] {
        // SAFETY: `slot_start` is the start of `slot_bytes` bytes within the mapping; by the lease the
        // producer does not write them.
        unsafe { std::slice::from_raw_parts(self.slot_start(slot), self.geometry.slot_bytes) }
    }

    /// The bytes of a slot, to write.
    ///
    /// # Safety
    /// The caller has claimed `slot`, keeps the claim for as long as it keeps the bytes, and takes them
    /// only once at a time.
    #[expect(clippy::mut_from_ref, reason = "a claim is what makes access exclusive")]
    pub(super) unsafe fn slot_mut(&self, slot: usize) -> &mut [u8] {
        // SAFETY: as in `slot`; by the claim nobody else reads or writes them.
        unsafe { std::slice::from_raw_parts_mut(self.slot_start(slot), self.geometry.slot_bytes) }
    }

    fn slot_start(&self, slot: usize) -> *mut u8 {
        let Geometry { slots, slot_bytes, first_slot, .. } = self.geometry;
        assert!(slot < slots, "no slot {slot}");
        const { assert!(PAGE.is_multiple_of(ALIGNMENT)) };
        // SAFETY: `first_slot + slots * slot_bytes` is the length of the mapping.
        unsafe { self.base.add(first_slot + slot * slot_bytes).as_ptr() }
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping is longer than a head and aligned to a page; any bytes are a valid head,
        // whose fields are atomics.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    fn map(fd: impl AsFd, geometry: Geometry) -> Result<Self, RingError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else is affected.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), geometry.bytes, access, MapFlags::SHARED, fd, 0)
        };
        let base = base.map_err(std::io::Error::from)?;
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at null unasked");
        Ok(Self { base, mapped_bytes: geometry.bytes, geometry })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and every borrow of it has ended.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own is unmapped");
    }
}

/// An anonymous file that can be sealed, and not executed where the kernel (6.3 on) can see to that.
fn anonymous_file() -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(c"millstream-ring", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create(c"millstream-ring", flags)?),
        result => Ok(result?),
    }
}
