//! Parts of files of records: several lanes read one large file in parallel.
//!
//! An uncompressed file larger than the job's `split_bytes` is cut into equal byte ranges. The cuts depend only on its
//! size, so a dataset is always cut the same way, without reading its files. The records of a part are located when it
//! is read. Let `B(x)` be the offset of the first record that begins at or after byte `x`
//! ([`boundary`](millstream_format::boundary)), and `B(size) = size`:
//!
//! ```text
//! part [x, y)  is read as the bytes  B(x) .. B(y)
//! ```
//!
//! `B` is a function of the file, so the parts cover the file without gap or overlap: no byte is lost or read twice.
//! That each part consists of whole records is *checked*: the reader of the preceding part must end between two records
//! at `B(y)`. For lines, it always does. For TFRecord, `B(y)` lies within a record only if records themselves contain
//! TFRecord data. The reader then fails with [`Error::Cut`]; it never skips or repeats a row silently. By induction over
//! the parts, starting at `B(0) = 0`: if all parts of a file were read without an error, they contain exactly the records
//! of the whole file.
//!
//! Damage stays local. A record with damaged data affects only the part that contains it. After a damaged length only
//! the rest of that part is unreadable, not the rest of the file.
//!
//! Locating a boundary takes a small read at each end of a part. A compressed file cannot be cut. If its name does not
//! show the compression, its first bytes do; the first part is then the whole file, and the other parts are empty.

use std::ops::Range;
use std::sync::Arc;

use futures::future::try_join;
use millstream_format::Error as FormatError;
use millstream_format::boundary::{Scan, scan_frames, scan_lines};
use millstream_format::compression::{Compression, MAGIC_BYTES};
use millstream_format::record::{MAX_RECORD_BYTES, RecordFormat};
use millstream_io::ReadContext;
use millstream_io::fetch::FetchedBytes;
use millstream_io::limits::ReadLimits;
use millstream_io::storage::Object;
use tokio::sync::oneshot;

use crate::error::Error;

/// The size of the first read when locating a boundary. Each further read doubles it, up to the maximum.
const FIRST_READ_BYTES: u64 = 64 << 10;
const MAX_READ_BYTES: u64 = 4 << 20;

/// The most bytes of a candidate besides its data: its header and checksum, and the header of the next record.
const FRAME_BYTES: u64 = 28;

/// The most bytes held while locating a part, for records of ordinary size.
pub(crate) const HELD_BYTES: u64 = 4 * FIRST_READ_BYTES;

/// The reaction to a record that exceeds its share of the memory budget.
pub(crate) const LONG_RECORD_ADVICE: &str = "raise data.memory_budget or lower data.lanes";

/// A located part, whose bytes are being fetched.
pub(crate) struct Located {
    pub(crate) bytes: FetchedBytes,
    /// Its byte range in the file.
    pub(crate) range: Range<u64>,
    /// The damage that makes the range empty, if any.
    pub(crate) damage: Option<Error>,
}

/// The number of parts, of at most `split_bytes`, of a file of `size` bytes. The size is what storage claims, so the
/// number is to be checked before anything is allocated for the parts.
pub(crate) fn count(path: &str, format: RecordFormat, size: u64, split_bytes: u64) -> u64 {
    let divisible = format.is_divisible() && Compression::from_name(path).is_none();
    let whole = size <= split_bytes || !divisible;
    if whole { 1 } else { size.div_ceil(split_bytes.max(1)) }
}

/// The byte ranges of these parts.
pub(crate) fn cuts(
    path: &str,
    format: RecordFormat,
    size: u64,
    split_bytes: u64,
) -> impl Iterator<Item = Range<u64>> {
    let parts = count(path, format, size, split_bytes);
    // Computed in 128 bits, so no product overflows.
    let cut = move |part: u64| (u128::from(size) * u128::from(part) / u128::from(parts)) as u64;
    (0..parts).map(move |part| cut(part)..cut(part + 1))
}

/// Locates the records of `part`, each of at most `most_bytes`, and starts fetching them.
pub(crate) fn locate(
    object: Object,
    format: RecordFormat,
    part: Range<u64>,
    most_bytes: u64,
    limits: &Arc<ReadLimits>,
    context: &ReadContext,
) -> oneshot::Receiver<Result<Located, Error>> {
    let (sender, receiver) = oneshot::channel();
    let (shared, limits) = (context.clone(), Arc::clone(limits));
    context.runtime.spawn(async move {
        let find = find(&object, format, part, most_bytes);
        let found = shared.permit.unless_closed(find).await.map_err(Error::from).flatten();
        let located = found.map(|(range, damage)| Located {
            bytes: FetchedBytes::start_range(object, range.clone(), &limits, &shared),
            range,
            damage,
        });
        // Sending fails if the reader was dropped.
        let _ = sender.send(located);
    });
    receiver
}

/// The byte range of a part's records.
async fn find(
    object: &Object,
    format: RecordFormat,
    part: Range<u64>,
    most_bytes: u64,
) -> Result<(Range<u64>, Option<Error>), Error> {
    let size = object.size();
    let head = object.read(0..size.min(MAGIC_BYTES as u64)).await?;
    if Compression::detect(&head) != Compression::None {
        let whole = if part.start == 0 { 0..size } else { size..size };
        return Ok((whole, None));
    }
    let [start, end] = [part.start, part.end].map(|at| boundary(object, format, at, most_bytes));
    let (start, end) = try_join(start, end).await?;
    let end = end.unwrap_or(size);
    Ok(match start {
        Some(start) => (start..end.max(start), None),
        None => (end..end, Some(no_boundary(object, part.start))),
    })
}

/// The offset of the first record that begins at or after byte `at`, or the end of the file. `None` if neither lies
/// within the maximum record length.
///
/// # Errors
/// When a record longer than `most_bytes` seems to begin there: it is not read to verify it.
async fn boundary(
    object: &Object,
    format: RecordFormat,
    at: u64,
    most_bytes: u64,
) -> Result<Option<u64>, Error> {
    let size = object.size();
    if at == 0 || at >= size {
        return Ok(Some(at));
    }
    // A line begins at `at` if the byte before it ends one. Files of the last two formats have no boundary within.
    let (scan, start): (fn(&[u8], u64) -> Scan, _) = match format {
        RecordFormat::JsonLines => (scan_lines, at - 1),
        RecordFormat::TfRecord | RecordFormat::WebDataset | RecordFormat::Mds => (scan_frames, at),
    };
    let (mut base, mut bytes, mut read_bytes) = (start, Vec::new(), FIRST_READ_BYTES);
    loop {
        match scan(&bytes, size - base) {
            Scan::Found(place) => return Ok(Some(base + place as u64)),
            Scan::End => return Ok(Some(size)),
            Scan::More { from, until } => {
                bytes.drain(..from);
                base += from as u64;
                if base.saturating_sub(at) > MAX_RECORD_BYTES {
                    return Ok(None);
                }
                if (until - from) as u64 > most_bytes.saturating_add(FRAME_BYTES) {
                    let message = format!(
                        "byte {base}: a record exceeds the limit of {most_bytes} bytes; {LONG_RECORD_ADVICE}"
                    );
                    return Err(Error::Format(FormatError::Mismatch {
                        path: object.path().to_string(),
                        message,
                    }));
                }
                let next = base + bytes.len() as u64;
                let end = (base + (until - from) as u64).max(next + read_bytes).min(size);
                bytes.extend_from_slice(&object.read(next..end).await?);
                read_bytes = (2 * read_bytes).min(MAX_READ_BYTES);
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
