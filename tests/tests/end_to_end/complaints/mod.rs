//! What users of other systems that train on several workers or hosts complain about, each with the test of what Millstream promises
//! instead. The numbers are those of the systems' issues.
//!
//! | complaint | tests |
//! |---|---|
//! | one file and two workers: a hang or an error (tensorflow 35878, 36846); a tiny recommender hangs on 3 machines (recommenders 274) | `complaints/rows.rs`: `one_file_and_four_hosts_train_each_row_once`; `workers.rs`: `a_file_with_fewer_rows_than_workers_fill_is_trained_completely` |
//! | uneven inputs hang (pytorch 33148, 38174) | `complaints/rows.rs`: `batches_on_one_of_two_hosts_do_not_stop_the_other`; `trainer/tests/models/uneven.rs`: `uneven_workers_agree_with_pytorch_on_the_cpu` |
//! | a node that is cut off goes unnoticed (pytorch 111646); survivors hang (elastic 134) | `complaints/faults.rs`: `survivors_of_a_lost_host_train_again_within_10_s`; in the middle of a sum, `trainer/backend/tests/collective/faults.rs`: `survivors_of_a_killed_host_get_an_error`, `a_stopped_host_is_named`; with a silent NCCL, `cuda.rs`: `workers_on_several_gpus_train_as_one_on_a_cpu` |
//! | rank 0's host dies, and all with it (pytorch 67742, 168242) | `hosts.rs`: `hosts_train_as_one_through_the_loss_of_workers_hosts_and_the_leader` |
//! | the limit of restarts is bypassed (pytorch 147064) | `complaints/faults.rs`: `a_crash_loop_over_hosts_ends_with_its_reason`; with a new leader, `daemon/peers/src/generations/tries.rs`: `a_new_leader_continues_the_count` |
//! | a host that joins stalls all (horovod 2652); deadlock below the minimum and back (horovod 3494) | `complaints/faults.rs`: `a_host_that_hangs_while_it_joins_does_not_stop_the_others`; `hosts.rs`: `hosts_leave_and_join_without_repeating_a_row` |
//! | rows are repeated after a graceful removal (horovod 3437) | `hosts.rs`: `hosts_leave_and_join_without_repeating_a_row` |
//! | accuracy depends on the number of workers (mxnet 2806, 11919) | `complaints/rows.rs`: `metrics_do_not_depend_on_the_number_of_hosts`; `workers.rs`: `reproducible_jobs_have_the_same_bits_for_every_number_of_workers` |
//! | a checkpoint of 8 workers does not load on 16 (torchtitan 811); it depends on the world (pytorch 79016) | `complaints/rows.rs`: `any_number_of_workers_reads_what_any_other_wrote`; several files, `workers.rs`: `each_worker_writes_files_of_a_checkpoint` |
//! | saving at preemption does not fire (spd 741); the signal kills helpers first (KempnerForge 177) | `complaints/faults.rs`: `a_host_that_gets_sigterm_saves_a_checkpoint_within_25_s` |
//! | which rank hangs? (nccl 1324, pytorch 118369) | of one host, `workers.rs`: `a_worker_that_hangs_is_named`; of several, `hosts.rs`: `a_worker_that_hangs_is_named_on_all_hosts` |
//! | one collective operation more on one rank (vllm 45092) | `trainer/backend/tests/collective/faults.rs`: `a_host_that_leaves_early_is_named`, `hosts_that_run_different_operations_are_named`; NCCL's, `tests/cuda/tests/check/nccl.cpp`: `nccl_names_ranks_with_different_operations` |
//! | the wrong network interface (nccl 286, 1580, 1581) | `complaints/refusals.rs`: `hosts_train_beside_a_dead_card_and_name_it_if_they_need_it` |
//! | "unhandled system error", and no more (HugeCTR 287, 404) | `complaints/refusals.rs`: `a_host_without_a_library_is_named_before_the_first_step`, `a_closed_port_is_named_with_a_remedy`; mixed versions, `daemon/peers/src/protocol.rs`: `two_daemons_use_the_newest_version_of_both` |
//! | aborting or destroying a communicator hangs (nccl 549, 863) | `workers.rs`: `all_workers_are_restarted_when_one_is_killed`; `complaints/faults.rs`: `a_crash_loop_over_hosts_ends_with_its_reason` |
//! | a deposed leader acts (kubernetes 23731) | `complaints/faults.rs`: `a_leader_that_is_stopped_past_its_lease_commits_nothing`; one host, `bucket_runs.rs`: `a_daemon_takes_over_a_run_whose_holder_gives_no_sign_of_life` |
//! | row-wise sharding hangs on 8 nodes (torchrec 850); tables are missing from a plan (torchrec 3652) | `trainer/backend/tests/collective/conformance.rs`: `a_world_of_7_processes_conforms` (zero counts); `trainer/src/checkpoint/files.rs`: `files_have_all_rows_once_in_order`. There is no sharding yet |
//! | no continuing after a server is lost (PERSIA 182) | not yet: there are no servers of tables |

#![allow(clippy::unwrap_used)]

mod faults;
mod refusals;
mod rows;
