//! Which lanes have a window ready, for an order that depends on it.

use crate::ingest::handover::Notify;

/// Tracks which lanes may have become ready.
pub(super) struct Readiness<'a> {
    notify: &'a Notify,
    /// The number of changes of the notify when last read.
    rings: u64,
    /// By lane, the value of `rings` when the lane was last found not ready.
    polled: Vec<Option<u64>>,
    /// The number of lanes found not ready at the current value of `rings`.
    absent: usize,
}

impl<'a> Readiness<'a> {
    pub(super) fn new(notify: &'a Notify, lanes: u32) -> Self {
        Self { notify, rings: notify.changes(), polled: vec![None; lanes as usize], absent: 0 }
    }

    /// Whether `lane` is ready according to `probe`, which is called again only after the notify has changed.
    pub(super) fn is_ready(&mut self, lane: u32, probe: impl FnOnce() -> bool) -> bool {
        let rings = self.notify.changes();
        if rings != self.rings {
            (self.rings, self.absent) = (rings, 0);
        }
        let polled = &mut self.polled[lane as usize];
        if *polled == Some(rings) {
            return false;
        }
        if probe() {
            return true;
        }
        *polled = Some(rings);
        self.absent += 1;
        false
    }

    /// Waits for the notify if all `live` lanes were found not ready since it last changed.
    pub(super) fn wait_if_none(&self, live: usize) {
        if self.absent >= live {
            self.notify.wait(self.rings);
        }
    }
}
