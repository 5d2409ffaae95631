//! The records of who changed what.

use std::sync::PoisonError;
use std::time::Instant;

use super::Daemon;
use crate::actor::Actor;
use crate::state::{AuditFilter, AuditRecord, Outcome, StoreError};

impl Daemon {
    /// Queues a record of an attempt, unless its user has caused too many that changed nothing. What changed nothing is also
    /// logged; the log has changes anyway.
    pub(crate) fn audit(&self, record: AuditRecord) {
        let AuditRecord { outcome, user, .. } = &record;
        let admitted = {
            let mut throttle = self.shared.audit.lock().unwrap_or_else(PoisonError::into_inner);
            throttle.admits(user.uid, *outcome, Instant::now())
        };
        let Some(unrecorded) = admitted else { return };
        let actor = Actor { uid: user.uid };
        let record = AuditRecord { user: actor.owner(), unrecorded, ..record };
        let AuditRecord { outcome, call, job, reason, .. } = &record;
        if !matches!(outcome, Outcome::Done) {
            tracing::info!(job, uid = actor.uid, "`{call}` of {actor}: {}: {reason}", outcome.name());
        }
        self.shared.store.append_audit(record);
    }

    /// The records that `filter` selects, oldest first, and their number without its limit.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) fn audited(&self, filter: &AuditFilter) -> Result<(Vec<AuditRecord>, u64), StoreError> {
        self.shared.store.audit(filter)
    }
}
