//! A recording of a job's steps, received from the daemon, summed up and written as a trace.

mod sums;
mod trace;

use millstream_control::proto::{Profile, Span, Track};

pub(crate) use sums::{KernelSum, OperationSum, PhaseSum, StageRate, Sums};
pub(crate) use trace::write;

/// A profile with all its spans.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) profile: Profile,
    pub(crate) tracks: Vec<Track>,
}

impl Recorded {
    /// A recording without spans.
    pub(crate) fn new(profile: Profile) -> Self {
        Self { profile, tracks: Vec::new() }
    }

    /// Appends the spans of a track.
    pub(crate) fn add(&mut self, track: Track) {
        let is_same = |known: &&mut Track| known.pid == track.pid && known.number == track.number;
        match self.tracks.iter_mut().find(is_same) {
            Some(known) => known.spans.extend(track.spans),
            None => self.tracks.push(track),
        }
    }

    /// Sorts spans by start; an enclosing span precedes those within it.
    pub(crate) fn sort(&mut self) {
        for track in &mut self.tracks {
            track.spans.sort_by_key(|span| (span.start_ns, std::cmp::Reverse(span.end_ns)));
        }
    }

    /// The duration of the recording.
    pub(crate) fn nanoseconds(&self) -> u64 {
        self.profile.ended_ns - self.profile.began_ns
    }
}

/// The duration of a span in nanoseconds.
fn length(span: &Span) -> u64 {
    span.end_ns.saturating_sub(span.start_ns)
}
