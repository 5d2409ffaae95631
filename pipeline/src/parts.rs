//! Parts of TFRecord files: one large file is read by several lanes side by side.
//!
//! An uncompressed file larger than the job's `split_bytes` is cut into equal byte ranges, by its size alone,
//! so that a dataset is cut without a look at its files and always alike. Where the records of a part really
//! begin is found when it is read: with `B(x)` the first record that begins at or after byte `x`
//! ([`boundary`](millstream_format::boundary)), and `B(size) = size`,
//!
//! ```text
//! part [x, y)  is read as the bytes  B(x) .. B(y)
//! ```
//!
//! Parts so cover a file without gap or overlap, as `B` is a function of the file: no byte is lost and none is
//! read twice. That each part is a run of whole records is *checked*: the reader that comes from before must
//! end between two records at `B(y)`. One that does not has met a `B(y)` that lies within a record, which takes
//! records that hold TFRecords themselves, and fails with [`Error::Cut`], never leaving out or repeating a row in
//! silence. By induction over the parts, from `B(0) = 0` on, a file all of whose parts were read without an
//! error gave the very records that it gives when read whole.
//!
//! Damage stays where it is: a record whose data are damaged is met by the part that it lies in, and after a
//! damaged length only the rest of that part is out of reach, not that of the file.
//!
//! Finding a boundary takes a small read at either end of a part. A compressed file cannot be cut; what its
//! name did not say, its first bytes do, and then the first part is all of it and the others are empty.

use std::ops::Range;
use std::sync::Arc;

use futures::future::try_join;
use millstream_format::Error as FormatError;
use millstream_format::boundary::{Scan, scan};
use millstream_format::compression::{Compression, MAGIC_BYTES};
use millstream_format::tfrecord::MAX_RECORD_BYTES;
use millstream_io::ReadContext;
use millstream_io::fetch::FetchedBytes;
use millstream_io::limits::ReadLimits;
use millstream_io::storage::Object;
use tokio::sync::oneshot;

use crate::error::Error;

/// Bytes looked at first for a boundary; each further look takes twice as many, up to the most.
const FIRST_LOOK_BYTES: u64 = 64 << 10;
const MOST_LOOK_BYTES: u64 = 4 << 20;

/// The most bytes that finding a part holds for records of ordinary size.
pub(crate) const HELD_BYTES: u64 = 4 * FIRST_LOOK_BYTES;

/// The bytes of a part, on their way.
pub(crate) struct Located {
    pub(crate) bytes: FetchedBytes,
    /// Where they lie in the file.
    pub(crate) range: Range<u64>,
    /// Why they are none, if that is damage.
    pub(crate) damage: Option<Error>,
}

/// How a file of `size` bytes is cut into parts of at most `split_bytes`.
pub(crate) fn cuts(path: &str, size: u64, split_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let whole = size <= split_bytes || Compression::from_name(path).is_some();
    let parts = if whole { 1 } else { size.div_ceil(split_bytes.max(1)) };
    // In 128 bits, so that no product overflows.
    let cut = move |part: u64| (u128::from(size) * u128::from(part) / u128::from(parts)) as u64;
    (0..parts).map(move |part| cut(part)..cut(part + 1))
}

/// Finds the records of `part` and starts to fetch them.
pub(crate) fn locate(
    object: Object,
    part: Range<u64>,
    limits: &Arc<ReadLimits>,
    context: &ReadContext,
) -> oneshot::Receiver<Result<Located, Error>> {
    let (sender, receiver) = oneshot::channel();
    let (shared, limits) = (context.clone(), Arc::clone(limits));
    context.runtime.spawn(async move {
        let located = find(&object, part).await.map(|(range, damage)| Located {
            bytes: FetchedBytes::start_range(object, range.clone(), &limits, &shared),
            range,
            damage,
        });
        // Nobody waits any more: the reader was dropped.
        let _ = sender.send(located);
    });
    receiver
}

/// The bytes of a part's records.
async fn find(object: &Object, part: Range<u64>) -> Result<(Range<u64>, Option<Error>), Error> {
    let size = object.size();
    let head = object.read(0..size.min(MAGIC_BYTES as u64)).await?;
    if Compression::detect(&head) != Compression::None {
        let whole = if part.start == 0 { 0..size } else { size..size };
        return Ok((whole, None));
    }
    let (start, end) = try_join(boundary(object, part.start), boundary(object, part.end)).await?;
    let end = end.unwrap_or(size);
    Ok(match start {
        Some(start) => (start..end.max(start), None),
        None => (end..end, Some(no_boundary(object, part.start))),
    })
}

/// The first record that begins at or after byte `at`, or the end of the file; `None` when there is neither
/// within the length of the longest record.
async fn boundary(object: &Object, at: u64) -> Result<Option<u64>, Error> {
    let size = object.size();
    if at == 0 || at >= size {
        return Ok(Some(at));
    }
    let (mut base, mut bytes, mut look) = (at, Vec::new(), FIRST_LOOK_BYTES);
    loop {
        match scan(&bytes, size - base) {
            Scan::Found(place) => return Ok(Some(base + place as u64)),
            Scan::End => return Ok(Some(size)),
            Scan::More { from, until } => {
                bytes.drain(..from);
                base += from as u64;
                if base - at > MAX_RECORD_BYTES {
                    return Ok(None);
                }
                let next = base + bytes.len() as u64;
                let end = (base + (until - from) as u64).max(next + look).min(size);
                bytes.extend_from_slice(&object.read(next..end).await?);
                look = (2 * look).min(MOST_LOOK_BYTES);
            }
        }
    }
}

fn no_boundary(object: &Object, offset: u64) -> Error {
    object.distrust();
    Error::Format(FormatError::Damage {
        path: object.path().to_string(),
        offset,
        record: 0,
        message: format!("no record begins within {MAX_RECORD_BYTES} bytes"),
    })
}
