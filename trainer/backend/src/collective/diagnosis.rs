//! Which rank the others wait for, from the flight records of all ranks.
//!
//! No rank can tell: one that waits sees only which data it lacks, and the sender may itself wait for the rank at fault. A
//! rank is at fault in the oldest open operation if it has not begun it, or if it has begun it and shows no sign of life any
//! more, as a stopped process does.
//!
//! A reducer takes part in some sums only. While it waits for the next one and shows life, nobody waits for it.
//!
//! The records of ranks on other hosts cannot be read here. Their hosts report what matters of them ([`RankState`]), with ages instead of
//! times, because each host has its own clock.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::recorder::{FlightRecord, now};
use super::transport::{Label, Operation, Round};

/// A rank without a sign of life for this time in an operation hangs. Ranks show one each millisecond, but a busy host may
/// delay them.
const SILENCE: Duration = Duration::from_secs(1);

/// What the flight record of a rank shows at some moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankState {
    /// The rank, or the number of a reducer.
    pub rank: usize,
    /// The number of the last operation that it has begun; 0 if none, and the largest number for a reducer that waits for the next sum.
    pub last_begun: u64,
    /// The operation that it has begun and not ended.
    pub open: Option<OpenOnRank>,
}

/// An operation that a rank has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenOnRank {
    /// The operation.
    pub operation: Operation,
    /// Its number, counted from 1.
    pub number: u64,
    /// The bytes that the rank passed.
    pub bytes: u64,
    /// The time since the rank began it, until it failed if it has.
    pub open_for: Duration,
    /// Whether the rank shows no sign of life in it any more.
    pub is_silent: bool,
}

/// An operation that some ranks of a world have begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOperation {
    /// The operation, as the first rank in it began it.
    pub operation: OpenOnRank,
    /// The ranks that wait in it, or have given up waiting.
    pub waiting: Vec<usize>,
    /// The ranks that have not begun it.
    pub missing: Vec<usize>,
    /// The ranks that have begun it, but hang.
    pub silent: Vec<usize>,
}

impl FlightRecord {
    /// What the record shows now.
    pub fn state(&self) -> RankState {
        self.state_at(Duration::from_nanos(now()))
    }

    fn state_at(&self, now: Duration) -> RankState {
        let is_silent = now.saturating_sub(self.alive) > SILENCE;
        let open = self.oldest_open().map(|open| OpenOnRank {
            operation: open.operation,
            number: open.number,
            bytes: open.bytes,
            open_for: open.failed.unwrap_or(now).saturating_sub(open.began),
            is_silent: open.failed.is_none() && is_silent,
        });
        let is_reducer = self.rank >= self.ranks;
        let last_begun =
            if is_reducer && open.is_none() && !is_silent { u64::MAX } else { self.last_begun() };
        RankState { rank: self.rank, last_begun, open }
    }
}

impl OpenOperation {
    /// The oldest open operation of a world, from the states of its ranks.
    pub fn oldest(states: &[RankState]) -> Option<Self> {
        let open = states.iter().filter_map(|state| state.open.as_ref());
        let oldest = open.min_by_key(|open| (open.number, Reverse(open.open_for)))?.clone();
        let (mut waiting, mut missing, mut silent) = (Vec::new(), Vec::new(), Vec::new());
        for state in states {
            match state.open.as_ref().filter(|open| open.number == oldest.number) {
                Some(open) if open.is_silent => silent.push(state.rank),
                Some(_) => waiting.push(state.rank),
                None if state.last_begun < oldest.number => missing.push(state.rank),
                // It has all data, and may have left the operation before the others.
                None => {}
            }
        }
        Some(Self { operation: oldest, waiting, missing, silent })
    }

    /// The ranks that the others wait for, in order. Empty if the states do not show them.
    pub fn awaited(&self) -> Vec<usize> {
        let mut awaited = [&self.missing[..], &self.silent].concat();
        awaited.sort_unstable();
        awaited
    }

    /// The time since the first rank began it, until that rank failed if it has.
    pub fn open_for(&self) -> Duration {
        self.operation.open_for
    }
}

/// As errors name it.
impl fmt::Display for OpenOnRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, number, .. } = *self;
        Label { operation, number, round: Round::Only }.fmt(f)
    }
}

impl fmt::Display for OpenOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ranks: &[usize]| {
            let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
        };
        let open = &self.operation;
        write!(f, "{open}, {} bytes, open for {:.1} s", open.bytes, open.open_for.as_secs_f64())?;
        let groups = [
            (" in ", &self.waiting),
            ("; not begun by ", &self.missing),
            ("; no sign of life from ", &self.silent),
        ];
        groups
            .into_iter()
            .filter(|(_, ranks)| !ranks.is_empty())
            .try_for_each(|(text, ranks)| write!(f, "{text}{}", list(ranks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Float;
    use crate::collective::recorder::RecordedOperation;

    const NOW: Duration = Duration::from_secs(100);

    /// How a rank stands in its last operation.
    #[derive(Clone, Copy)]
    enum Last {
        Ended,
        Open,
        Failed,
    }

    /// The record of a rank whose last operation has number `last`, and began 3 s ago. It was alive `silent_ms` ago.
    fn record(rank: usize, (last, state): (u64, Last), silent_ms: u64) -> RankState {
        let began = |number: u64| NOW - Duration::from_secs(3 + last - number);
        let operation = |number: u64| {
            let end = Some(began(number) + Duration::from_millis(500));
            let (ended, failed) = match state {
                _ if number < last => (end, None),
                Last::Ended => (end, None),
                Last::Open => (None, None),
                Last::Failed => (None, Some(began(number) + Duration::from_secs(2))),
            };
            let operation = Operation::Sum(Float::F16);
            RecordedOperation { operation, number, bytes: 4000, began: began(number), ended, failed }
        };
        let alive = NOW - Duration::from_millis(silent_ms);
        let operations = (1..=last).map(operation).collect();
        FlightRecord { rank, ranks: 3, alive, operations }.state_at(NOW)
    }

    fn oldest(states: [RankState; 3]) -> OpenOperation {
        OpenOperation::oldest(&states).expect("an open operation")
    }

    #[test]
    fn a_rank_that_has_not_begun_the_operation_is_awaited() {
        let open = oldest([
            record(0, (9, Last::Open), 1),
            record(1, (8, Last::Ended), 4000),
            record(2, (9, Last::Open), 1),
        ]);
        assert_eq!((open.operation.number, &open.waiting[..], open.awaited()), (9, &[0, 2][..], vec![1]));
        let text =
            "sum of f32 as f16, number 9, 4000 bytes, open for 3.0 s in ranks 0, 2; not begun by rank 1";
        assert_eq!(open.to_string(), text);
    }

    #[test]
    fn a_rank_that_hangs_in_the_operation_is_awaited() {
        let open = oldest([
            record(0, (9, Last::Open), 2),
            record(1, (9, Last::Open), 2900),
            record(2, (9, Last::Open), 1),
        ]);
        assert_eq!((&open.waiting[..], open.awaited()), (&[0, 2][..], vec![1]));
        assert!(open.to_string().ends_with(" in ranks 0, 2; no sign of life from rank 1"), "{open}");
        // The others have all data of this operation, and wait for the next one.
        let open = oldest([
            record(0, (10, Last::Open), 2),
            record(1, (9, Last::Open), 2900),
            record(2, (10, Last::Open), 1),
        ]);
        assert_eq!((open.operation.number, &open.waiting[..], open.awaited()), (9, &[][..], vec![1]));
    }

    #[test]
    fn a_reducer_is_awaited_only_if_it_hangs() {
        // Its number is that of the ranks or higher.
        let reducer = |(last, state), silent_ms| record(3, (last, state), silent_ms);
        let waits = record(0, (9, Last::Open), 1);
        let late = record(1, (8, Last::Ended), 4000);
        let awaited = |reducer: RankState| oldest([waits.clone(), late.clone(), reducer]).awaited();
        // The operation is no sum, or a rank has not sent its numbers yet.
        assert_eq!(awaited(reducer((5, Last::Ended), 1)), [1]);
        assert_eq!(awaited(reducer((9, Last::Open), 1)), [1]);
        assert_eq!(awaited(reducer((5, Last::Ended), 2900)), [1, 3]);
        assert_eq!(awaited(reducer((9, Last::Open), 2900)), [1, 3]);
    }

    #[test]
    fn ranks_that_have_given_up_are_not_awaited() {
        let failed = |rank| record(rank, (9, Last::Failed), 1500);
        let open = oldest([failed(0), record(1, (9, Last::Open), 2900), failed(2)]);
        assert_eq!((&open.waiting[..], open.awaited()), (&[0, 2][..], vec![1]));
        assert_eq!(oldest([failed(0), failed(1), failed(2)]).awaited(), [0; 0]);
        assert_eq!(oldest([failed(0), failed(1), failed(2)]).open_for(), Duration::from_secs(2));
    }

    #[test]
    fn without_an_open_operation_nobody_is_awaited() {
        let ended = |rank| record(rank, (9, Last::Ended), 4000);
        assert_eq!(OpenOperation::oldest(&[ended(0), ended(1)]), None);
        assert_eq!(OpenOperation::oldest(&[record(0, (0, Last::Ended), 4000)]), None);
        // A rank that has ended an operation is neither waiting nor awaited.
        let open = oldest([ended(0), record(1, (9, Last::Open), 1), ended(2)]);
        assert_eq!((&open.waiting[..], open.awaited()), (&[1][..], vec![]));
    }
}
