//! Every operation of every backend, with shared test bodies.
//!
//! [`by_hand`] compares all backends with values computed by hand. [`random`] compares the CPU and CUDA with the
//! reference over random shapes, odd sizes and extremes, and the CPU with itself for different numbers of threads.
//! [`precision`] does so for matrices of 16-bit formats, and [`tables`] for tables.

mod attention;
mod by_hand;

mod case;

mod interactions;

mod lists;

mod merged;

mod normalization;

mod operations;

mod precision;

mod random;

mod retrieval;

mod tables;

mod wrong_shapes;
