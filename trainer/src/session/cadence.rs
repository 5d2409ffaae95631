//! The evaluation cadence of a training job.

use serde::{Deserialize, Serialize};

/// When a job is evaluated, in addition to the end of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalCadence {
    /// The number of steps between evaluations.
    pub every_steps: Option<u64>,
    /// The number of epochs between evaluations.
    pub every_epochs: Option<u32>,
}

impl EvalCadence {
    /// Whether an evaluation is due after `step`. `ended` is the epoch, from 0, that ended with this step, if
    /// any.
    pub fn is_due(&self, step: u64, ended: Option<u32>) -> bool {
        let by_steps = self.every_steps.is_some_and(|every| step.is_multiple_of(every));
        let by_epochs = self.every_epochs.zip(ended);
        by_steps || by_epochs.is_some_and(|(every, epoch)| (epoch + 1).is_multiple_of(every))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn evaluations_are_due_by_steps_and_by_epochs() {
        let due = |every_steps, every_epochs| {
            let cadence = EvalCadence { every_steps, every_epochs };
            // Epochs of three steps.
            let ended = |step: u64| step.is_multiple_of(3).then(|| u32::try_from(step / 3).unwrap() - 1);
            (1..=12).filter(|&step| cadence.is_due(step, ended(step))).collect::<Vec<u64>>()
        };
        assert_eq!(due(Some(5), None), [5, 10]);
        assert_eq!(due(None, Some(2)), [6, 12]);
        assert_eq!(due(Some(4), Some(1)), [3, 4, 6, 8, 9, 12]);
        assert!(due(None, None).is_empty());
    }
}
