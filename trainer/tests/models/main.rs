//! Every kind of model and optimizer: against PyTorch, against finite differences, and against itself.
//!
//! `golden/models.py` made the models, the batches and the numbers.

mod case;
mod differences;
mod golden;
mod same_bits;
mod warm_start;
