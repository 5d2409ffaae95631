//! A finding: the result of one check.

use std::collections::BTreeMap;

use serde::Serialize;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mark {
    /// As it should be.
    Ok,
    /// Jobs run, but worse than they could, or only some of them.
    Warn,
    /// Jobs fail.
    Fail,
    /// Unknown.
    Skipped,
}

/// The result of one check. With `--json`, it is printed as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// The check, the same name in each run: `disk.state`.
    pub(crate) check: &'static str,
    pub(crate) mark: Mark,
    /// The state that was found.
    pub(crate) found: String,
    /// The command or setting that mends it; null if nothing is to be done.
    pub(crate) advice: Option<String>,
    /// What was measured; units are in the names.
    pub(crate) figures: BTreeMap<&'static str, f64>,
}

impl Mark {
    pub(crate) const ALL: [Self; 4] = [Self::Ok, Self::Warn, Self::Fail, Self::Skipped];

    /// The word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skipped => "skipped",
        }
    }
}

impl Finding {
    fn new(check: &'static str, mark: Mark, found: impl Into<String>, advice: Option<String>) -> Self {
        Self { check, mark, found: found.into(), advice, figures: BTreeMap::new() }
    }

    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Mark::Ok, found, None)
    }

    pub(crate) fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(check, Mark::Warn, found, Some(advice.into()))
    }

    pub(crate) fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(check, Mark::Fail, found, Some(advice.into()))
    }

    pub(crate) fn skipped(check: &'static str, why: impl Into<String>) -> Self {
        Self::new(check, Mark::Skipped, why, None)
    }

    /// With a measured number.
    pub(crate) fn with(mut self, name: &'static str, number: f64) -> Self {
        self.figures.insert(name, number);
        self
    }
}
