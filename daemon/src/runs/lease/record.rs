//! The record of a lease: who has it, in which term, and the state of a run on several hosts.

use serde::{Deserialize, Serialize};

use super::holder::Holder;

/// The terms of an epoch, most of which are never used.
pub(super) const EPOCH_TERMS: u64 = 1 << 20;

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) holder: Holder,
    pub(super) term: u64,
    /// How often the holder has renewed it: no two contents are equal.
    pub(super) renewals: u64,
    pub(super) is_released: bool,
    /// Of a run on several hosts, once a daemon has led it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) led: Option<Led>,
}

/// The state of a run on several hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Led {
    /// The newest checkpoint.
    pub(crate) head: Option<Head>,
    /// How the job has ended, once it has.
    pub(crate) ended: Option<End>,
}

/// A committed checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) step: u64,
    /// The term of the workers that wrote it.
    pub(crate) term: u64,
}

/// How a job has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    /// All rows are trained on.
    Finished,
    /// It failed, for this reason.
    Failed(String),
}

/// The term of generation `number` of an epoch.
pub(crate) fn generation_term(epoch: u64, number: u64) -> u64 {
    epoch.saturating_mul(EPOCH_TERMS).saturating_add(number.min(EPOCH_TERMS - 2))
}

/// The epoch and the number of the generation with a term.
pub(crate) fn of_term(term: u64) -> (u64, u64) {
    (term / EPOCH_TERMS, term % EPOCH_TERMS)
}

impl Record {
    /// The first one of a holder.
    pub(super) fn of(holder: Holder) -> Self {
        Self { holder, term: 0, renewals: 0, is_released: false, led: None }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("a lease has string keys and whole numbers");
        json.push(b'\n');
        json
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn terms_of_epochs_and_of_single_hosts_increase() {
        // As `begin_epoch` and `begin_term` count.
        let epoch = |term: u64| term / EPOCH_TERMS + 1;
        let recorded = |epoch| generation_term(epoch, 0) + EPOCH_TERMS - 1;
        let first = epoch(3);
        assert!(generation_term(first, 1) > 3 && recorded(first) > generation_term(first, u64::MAX));
        assert_eq!(epoch(recorded(first)), first + 1);
        let single = recorded(first) + 1;
        assert!(generation_term(epoch(single), 1) > single);
        assert_eq!(of_term(generation_term(5, 9)), (5, 9));
        assert!(generation_term(u64::MAX, 1) == u64::MAX, "no overflow");
    }

    #[test]
    fn a_lease_of_one_host_has_no_state_of_several() {
        let mut record = Record::of(Holder::this().unwrap());
        let text = String::from_utf8(record.to_json()).unwrap();
        assert!(!text.contains("\"led\""), "{text}");
        record.led =
            Some(Led { head: Some(Head { step: 7, term: 1 << 20 }), ended: Some(End::Failed("x".into())) });
        assert_eq!(serde_json::from_slice::<Record>(&record.to_json()).unwrap(), record);
    }

    #[test]
    fn no_two_contents_are_equal() {
        let record = || Record { term: 1, ..Record::of(Holder::this().unwrap()) };
        let (first, second) = (record(), record());
        assert_ne!(first.to_json(), second.to_json());
        assert_eq!(serde_json::from_slice::<Record>(&first.to_json()).unwrap(), first);
    }
}
