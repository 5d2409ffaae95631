//! End-to-end and fault tests of the built programs, linked once.

mod access;
mod auto_batch;
mod bad_input;
mod census;
mod classes;
mod command_line;
mod continuation;
mod cuda;
mod cuda_memory;
mod evaluation;
mod faults_cache;
mod faults_checkpoint;
mod faults_daemon;
mod faults_rows;
mod faults_train;
mod faults_worker;
mod file_tools;
mod interrupt;
mod labels;
mod mixing;
mod priority;
mod profile;
mod retrieval;
mod scored_text;
mod warm_start;
mod weighted;
