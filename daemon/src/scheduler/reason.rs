//! Why a job waits, in one line.

use std::fmt;

use millstream_batch::{Count, Size};

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// As many jobs run as may.
    Jobs { limit: usize },
    /// Its user runs as many jobs as one may.
    UserLimit { limit: usize },
    /// Running jobs use the memory that it needs.
    Memory { needed_bytes: u64, free_bytes: u64, all_bytes: u64 },
    /// Running jobs use the threads that it needs.
    Threads { needed: u32, free: u32, all: u32 },
    /// Another job trains on its GPU.
    Gpu { number: u32, holder: Option<String> },
    /// It would delay a job before it.
    Reserved { holder: String },
    /// The host's memory is in use, if not by jobs.
    HostMemory,
    /// The daemon died while both it and another job were under way.
    Suspect { other: String },
    /// Too many jobs are before it to look at it.
    Behind,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jobs { limit } => {
                write!(f, "{}, as many as `max_jobs` allows", running(*limit))
            }
            Self::UserLimit { limit } => {
                write!(f, "{} of its user, as many as `max_jobs_per_user` allows", running(*limit))
            }
            Self::Memory { needed_bytes, free_bytes, all_bytes } => write!(
                f,
                "it needs {} of memory, and running jobs leave {} of {}",
                Size(*needed_bytes),
                Size(*free_bytes),
                Size(*all_bytes)
            ),
            Self::Threads { needed, free, all } => write!(
                f,
                "it needs {}, and running jobs leave {free} of {all}",
                Count((*needed).into(), "thread")
            ),
            Self::Gpu { number, holder: Some(holder) } => write!(f, "job {holder} trains on GPU {number}"),
            Self::Gpu { number, holder: None } => write!(f, "another job trains on GPU {number}"),
            Self::Reserved { holder } => write!(f, "it would delay job {holder}, which is before it"),
            Self::HostMemory => f.write_str("the host has too little free memory until another job ends"),
            Self::Suspect { other } => write!(
                f,
                "the daemon died while this job and {other} were under way; they run one after another"
            ),
            Self::Behind => f.write_str("many jobs are before it"),
        }
    }
}

fn running(jobs: usize) -> String {
    let verb = if jobs == 1 { "is" } else { "are" };
    format!("{} {verb} running", Count(jobs as u64, "job"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_lines() {
        let lines = [
            (Reason::Jobs { limit: 1 }, "1 job is running, as many as `max_jobs` allows"),
            (
                Reason::UserLimit { limit: 2 },
                "2 jobs are running of its user, as many as `max_jobs_per_user` allows",
            ),
            (
                Reason::Memory { needed_bytes: 4 << 30, free_bytes: 1 << 30, all_bytes: 20 << 30 },
                "it needs 4.0 GiB of memory, and running jobs leave 1.0 GiB of 20.0 GiB",
            ),
            (
                Reason::Threads { needed: 1, free: 0, all: 8 },
                "it needs 1 thread, and running jobs leave 0 of 8",
            ),
            (Reason::Gpu { number: 3, holder: Some("a-1".into()) }, "job a-1 trains on GPU 3"),
            (Reason::Reserved { holder: "a-1".into() }, "it would delay job a-1, which is before it"),
        ];
        for (reason, line) in lines {
            assert_eq!(reason.to_string(), line);
        }
    }
}
