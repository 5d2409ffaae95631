//! Every operation of every backend, from one body.
//!
//! [`by_hand`] holds both backends to numbers worked out by hand; [`random`] holds the CPU to the
//! reference over random shapes, odd sizes and extremes, and to itself over numbers of threads; [`precision`] does so
//! with matrices of fewer digits, and [`tables`] with tables.

mod by_hand;
mod case;
mod interactions;
mod normalization;
mod precision;
mod random;
mod retrieval;
mod tables;
mod wrong_shapes;
