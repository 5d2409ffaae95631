//! The problems of a file, with their positions.
//!
//! All problems of a file are reported together, each in the format of a compiler: `job.toml:12:1: error: unknown key
//! ...`.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

/// The maximum number of problems, of warnings and of unknown keys that are reported. A file of 1 MiB could have a hundred
/// thousand, each located by a search through the file.
pub const MAX_PROBLEMS: usize = 100;

/// One problem of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its position: `FILE:LINE:COLUMN`, or the override.
    pub place: String,
    /// What is wrong, and what would be correct.
    pub message: String,
}

/// All problems of a file, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentError {
    /// At least one.
    pub problems: Vec<Problem>,
}

/// A probable mistake that does not prevent the use of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning(pub Problem);

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, problem) in self.problems.iter().enumerate() {
            let newline = if nth == 0 { "" } else { "\n" };
            write!(f, "{newline}{}: error: {}", problem.place, problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for DocumentError {}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: warning: {}", self.0.place, self.0.message)
    }
}

/// The position of a value, cheap to store. Positions sort like the text, overrides last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// Bytes from the start of the file.
    Offset(usize),
    /// The index of the override, or of the name of an argument.
    Set(usize),
}

/// Collects problems and warnings while a file is read, and converts their positions to lines.
pub struct Problems<'a> {
    path: &'a Path,
    text: &'a str,
    /// What messages have before an override.
    set_prefix: &'static str,
    set: &'a [String],
    errors: RefCell<Vec<(At, String)>>,
    warnings: RefCell<Vec<(At, String)>>,
    strays: RefCell<Vec<Stray>>,
    known: RefCell<Vec<Known>>,
}

/// A key that some table allows.
#[derive(Clone, Debug)]
pub struct Known {
    /// The path of its table, if there is only one of that kind.
    pub section: Option<String>,
    /// The key.
    pub key: &'static str,
}

/// An unknown key, similar to none of its own table's keys.
struct Stray {
    at: At,
    key: String,
    message: String,
}

impl<'a> Problems<'a> {
    /// Those of the file `path` with this text and these overrides.
    pub fn new(path: &'a Path, text: &'a str, set: &'a [String]) -> Self {
        Self::with(path, text, ("--set ", set))
    }

    /// Those of values that a program passes by these dotted names ([`crate::tree::Table::of_arguments`]), without a file.
    pub fn of_arguments(names: &'a [String]) -> Self {
        Self::with(Path::new(""), "", ("", names))
    }

    fn with(path: &'a Path, text: &'a str, (set_prefix, set): (&'static str, &'a [String])) -> Self {
        Self {
            path,
            text,
            set_prefix,
            set,
            errors: RefCell::default(),
            warnings: RefCell::default(),
            strays: RefCell::default(),
            known: RefCell::default(),
        }
    }

    /// The path of the file in messages.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// The size of the file.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Reports an error.
    pub fn error(&self, at: At, message: impl Into<String>) {
        push(&self.errors, (at, message.into()));
    }

    /// Reports what is valid but probably not meant.
    pub fn warn(&self, at: At, message: impl Into<String>) {
        push(&self.warnings, (at, message.into()));
    }

    /// Reports an unknown key that is similar to none of its own table's keys; another section may allow it.
    pub fn stray(&self, at: At, key: &str, message: String) {
        push(&self.strays, Stray { at, key: key.to_owned(), message });
    }

    /// Whether further errors would not be reported, so that reading may end.
    pub fn is_full(&self) -> bool {
        self.errors.borrow().len() >= MAX_PROBLEMS
    }

    /// The keys that a table allows.
    pub fn known(&self, section: Option<&str>, keys: &[&'static str]) {
        let section = section.map(str::to_owned);
        self.known.borrow_mut().extend(keys.iter().map(|key| Known { section: section.clone(), key }));
    }

    /// The keys that all tables read so far allow.
    pub fn all_known(&self) -> Vec<Known> {
        self.known.borrow().clone()
    }

    /// Returns an error with all problems found, if there are any.
    pub fn check(&self) -> Result<(), DocumentError> {
        let known = self.known.borrow();
        for Stray { at, key, message } in self.strays.take() {
            let home = known.iter().filter(|known| known.key == key).find_map(|known| known.section.as_ref());
            let hint = home.map(|home| format!("; did you mean `{home}.{key}`?")).unwrap_or_default();
            self.error(at, message + &hint);
        }
        let problems = self.located(self.errors.take());
        if problems.is_empty() { Ok(()) } else { Err(DocumentError { problems }) }
    }

    /// The warnings, in the order of the file.
    pub fn warnings(&self) -> Vec<Warning> {
        self.located(self.warnings.take()).into_iter().map(Warning).collect()
    }

    fn located(&self, mut found: Vec<(At, String)>) -> Vec<Problem> {
        found.sort_by_key(|&(at, _)| at);
        found.dedup();
        found.into_iter().map(|(at, message)| Problem { place: self.place(at), message }).collect()
    }

    /// A position as messages show it. Columns count characters; they and lines start at 1.
    pub fn place(&self, at: At) -> String {
        match at {
            At::Set(nth) => {
                format!("{}{}", self.set_prefix, self.set.get(nth).map_or("", String::as_str))
            }
            At::Offset(offset) => {
                let before = self.text.get(..offset).unwrap_or(self.text);
                let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
                let line = before.matches('\n').count() + 1;
                let column = before[line_start..].chars().count() + 1;
                format!("{}:{line}:{column}", self.path.display())
            }
        }
    }
}

fn push<T>(found: &RefCell<Vec<T>>, item: T) {
    let mut found = found.borrow_mut();
    if found.len() < MAX_PROBLEMS {
        found.push(item);
    }
}

/// `; did you mean ...?` with the known name most similar to a wrong one; empty if none is similar. Similar names
/// differ by one or two edits, or share a prefix.
pub fn suggestion<'n>(wrong: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    const ALIKE: f64 = 0.8;
    // No key is longer, and comparing takes time in proportion to the length.
    const MAX_LENGTH: usize = 64;
    if wrong.len() > MAX_LENGTH {
        return String::new();
    }
    let slips = (wrong.chars().count() / 3).max(1);
    let likeness = |name: &str| match strsim::osa_distance(wrong, name) {
        distance if distance <= slips => 2.0 - distance as f64 / wrong.len().max(1) as f64,
        _ if wrong.len() >= 3 && name.starts_with(wrong) => 1.0,
        _ => strsim::jaro_winkler(wrong, name),
    };
    known
        .into_iter()
        .map(|name| (likeness(name), name))
        .filter(|&(likeness, _)| likeness >= ALIKE)
        .min_by(|(one, _), (other, _)| other.total_cmp(one))
        .map(|(_, name)| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}
