//! Errors of collective operations.
//!
//! They name the operation and the ranks at fault, because a job hangs on one rank and is noticed on all others.

use std::fmt;
use std::panic;
use std::time::Duration;

use super::transport::Label;

/// Why a collective operation failed.
///
/// No operation is repeated or repaired: after the first error a communicator fails all later operations with it, and
/// the workers must be started again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// Ranks take no part in an operation.
    #[error("{label}: {absent}; the workers of this job must be started again")]
    Absent {
        /// The operation of this rank.
        label: Label,
        /// The ranks that are missing.
        absent: Absent,
    },
    /// Two ranks run different operations.
    #[error(
        "rank {rank} runs {ours}, but rank {peer} runs {theirs}: all ranks must run the same operations in the same \
         order"
    )]
    Mismatch {
        /// This rank.
        rank: usize,
        /// Its operation.
        ours: Label,
        /// The other rank.
        peer: usize,
        /// The operation of the other rank.
        theirs: Label,
    },
    /// A rank sends more or fewer bytes than this rank expects.
    #[error(
        "{label}: rank {peer} sends {sent} bytes, but rank {rank} expects {expected}: all ranks must pass as many numbers"
    )]
    Size {
        /// The operation.
        label: Label,
        /// This rank.
        rank: usize,
        /// The number of bytes it expects.
        expected: usize,
        /// The sender.
        peer: usize,
        /// The number of bytes it sends.
        sent: usize,
    },
    /// The caller's arguments do not fit the communicator.
    #[error("{label}: {reason}")]
    Argument {
        /// The operation.
        label: Label,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The engine that carries the data reports an error.
    #[error("{label}: exchange with rank {peer}: {reason}; the workers of this job must be started again")]
    Engine {
        /// The operation.
        label: Label,
        /// The other rank.
        peer: usize,
        /// The engine's message.
        reason: String,
    },
    /// The devices of the ranks cannot complete an operation.
    #[error("{label}: {reason}; the workers of this job must be started again")]
    Device {
        /// The operation.
        label: Label,
        /// What was found on this rank.
        reason: String,
    },
    /// The communicator's thread has panicked.
    #[error(
        "the thread that runs collective operations has panicked; the workers of this job must be started again"
    )]
    Panicked,
}

impl CollectiveError {
    /// Panics with this error as the payload: an operation of a device cannot return it. As of a
    /// [`DeviceFault`](crate::DeviceFault), the process that owns the device can report it and end.
    ///
    /// # Panics
    /// Always.
    pub fn raise(self) -> ! {
        panic::panic_any(self)
    }
}

/// The ranks that are missing in an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The ranks whose process, or thread, has ended.
    pub dead: Vec<usize>,
    /// The ranks that live but have not exchanged all their data within the deadline. Empty if the operation failed
    /// earlier, because of a dead rank.
    pub late: Vec<usize>,
    /// The deadline of an operation.
    pub deadline: Duration,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dead, late, deadline } = self;
        let ranks = |ranks: &[usize]| {
            let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
        };
        if !dead.is_empty() {
            write!(f, "{} ended{}", ranks(dead), if late.is_empty() { "" } else { ", " })?;
        }
        if !late.is_empty() {
            write!(f, "{} did not complete it within {} s", ranks(late), deadline.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::transport::{Operation, Round};
    use crate::{Float, collective::memory::Format};

    #[test]
    fn messages_name_the_operation_and_the_ranks() {
        let label = Label { operation: Operation::Sum(Float::Bf16), number: 17, round: Round::Sums };
        let absent = |dead: &[usize], late: &[usize]| {
            let absent =
                Absent { dead: dead.to_vec(), late: late.to_vec(), deadline: Duration::from_millis(2500) };
            CollectiveError::Absent { label, absent }.to_string()
        };
        let end = "; the workers of this job must be started again";
        assert_eq!(absent(&[2], &[]), format!("sum of f32 as bf16, number 17: rank 2 ended{end}"));
        assert_eq!(
            absent(&[], &[1, 3]),
            format!("sum of f32 as bf16, number 17: ranks 1, 3 did not complete it within 2.5 s{end}")
        );
        assert_eq!(
            absent(&[0], &[1]),
            format!(
                "sum of f32 as bf16, number 17: rank 0 ended, rank 1 did not complete it within 2.5 s{end}"
            )
        );
        let theirs = Label { operation: Operation::Exchange(Format::U32), number: 17, round: Round::Only };
        assert_eq!(
            CollectiveError::Mismatch { rank: 0, ours: label, peer: 3, theirs }.to_string(),
            "rank 0 runs sum of f32 as bf16, number 17, but rank 3 runs exchange of u32, number 17: all ranks must run the \
             same operations in the same order"
        );
    }
}
