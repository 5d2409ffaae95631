//! Byte ranges.

use std::ops::Range;

/// Merges sorted ranges that have at most `gap` bytes between them.
pub(crate) fn merged(ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end + gap => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
