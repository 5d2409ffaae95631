//! The manual, `docs/`: its commands are run, its configurations parsed, its links followed.
//!
//! The info string of a fenced block says how it is tested:
//!
//! | block | test |
//! |---|---|
//! | `console` | runs; the output is compared (`console`) |
//! | `sh` | is parsed by `sh`, and its flags exist (`scripts`) |
//! | `toml job` | is a whole job; `toml daemon` a configuration, plain `toml` a part of a job (`configurations`) |
//! | any, with `file=NAME` | is written to this file before the following `console` blocks run |
//! | `text`, `yaml`, `python`, `ini` | none |
//!
//! `MILLSTREAM_RENEW=1` regenerates the page of the job file's keys (`reference`).

mod configurations;
mod console;
mod links;
mod page;
mod reference;
mod scripts;
