//! A directory with a small job and its data, which each case corrupts.

use std::fs;
use std::path::{Path, PathBuf};

use millstream_tests::shell::{Completed, Shell};
use millstream_tests::table::Table;
use tempfile::TempDir;

/// Rows of the training data.
pub(crate) const ROWS: usize = 300;

const JOB: &str = r#"name = "spoiled"

[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
batch_size = 32

[label]
column = "clicked"

[features]
x = { kind = "numeric", normalize = "zscore" }
color = { kind = "vocabulary" }

[model]
kind = "wide_deep"
wide.features = ["color"]
deep.features = ["x", "color"]
deep.embedding_dim = 2
deep.hidden = [4]
"#;

/// A directory with a small job and its data.
pub(crate) struct Fixture {
    directory: TempDir,
}

/// A kind of bad input and the expected failure.
pub(crate) struct Case {
    /// A description, for the test's report.
    pub(crate) name: &'static str,
    /// Introduces the fault.
    pub(crate) corrupt: fn(&Fixture),
    /// The command line.
    pub(crate) arguments: &'static [&'static str],
    /// The expected exit code.
    pub(crate) exit_code: i32,
    /// Texts that standard error must contain.
    pub(crate) stderr: &'static [&'static str],
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let fixture = Self::without_data();
        fixture.train().write_parquet(&fixture.path("train.parquet"));
        Table::clicks(ROWS, 2).write_parquet(&fixture.path("eval.parquet"));
        fixture
    }

    pub(crate) fn without_data() -> Self {
        let fixture = Self { directory: tempfile::tempdir().unwrap() };
        fs::write(fixture.path("job.toml"), JOB).unwrap();
        fixture
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn shell(&self) -> Shell {
        Shell::new(self.directory.path())
    }

    /// The training data.
    pub(crate) fn train(&self) -> Table {
        Table::clicks(ROWS, 1)
    }

    /// Replaces a unique piece of text in the job file.
    pub(crate) fn edit(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.path("job.toml")).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from:?} occurs once in the job");
        fs::write(self.path("job.toml"), text.replace(from, to)).unwrap();
    }

    /// Runs the command, and returns all deviations from what is expected.
    fn deviations(&self, case: &Case) -> Vec<String> {
        let before = self.shell().files();
        let ended = self.shell().run(case.arguments);
        let Completed { stdout, stderr, .. } = &ended;
        let mut deviations = Vec::new();
        if ended.code() != case.exit_code {
            deviations.push(format!("exit status {} instead of {}", ended.code(), case.exit_code));
        }
        let missing = case.stderr.iter().filter(|&&words| !stderr.contains(words));
        deviations.extend(missing.map(|words| format!("stderr lacks {words:?}")));
        let after = self.shell().files();
        // The checkpoint directory may remain if it is empty.
        let left = after.difference(&before).filter(|path| *path != Path::new("checkpoints"));
        deviations.extend(left.map(|path| format!("leaves behind {}", path.display())));
        if !stdout.is_empty() {
            deviations.push(format!("stdout: {stdout:?}"));
        }
        if !deviations.is_empty() {
            deviations.push(format!("stderr: {stderr}"));
        }
        deviations
    }
}

/// Runs every case in its own directory, and reports all deviations.
pub(crate) fn run_cases(fixture: fn() -> Fixture, cases: &[Case]) {
    assert!(!cases.is_empty());
    let mut report = String::new();
    for case in cases {
        let fixture = fixture();
        (case.corrupt)(&fixture);
        let deviations = fixture.deviations(case);
        if !deviations.is_empty() {
            report +=
                &format!("\n{} ({}):\n  {}", case.name, case.arguments.join(" "), deviations.join("\n  "));
        }
    }
    assert!(report.is_empty(), "{report}");
}
