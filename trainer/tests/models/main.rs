//! Every kind of model and optimizer: against PyTorch, against finite differences, and against itself.
//!
//! `golden/models.py` generated the models, the batches and the expected values; `golden/din.py` those of DIN and of
//! models with maxima, on the same batches, and `golden/precision.py` and `golden/loss_scale.py` those of
//! [`precision`] and [`loss_scale`].

mod ahead;
mod case;
mod differences;
mod early_sums;
mod golden;
mod gradient_precision;
mod loss_scale;
mod memory;
mod precision;
mod same_bits;
mod tables;
mod traffic;
mod uneven;
mod warm_start;
mod whole_tables;
mod workers;
