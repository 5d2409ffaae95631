//! Counts of one split, accumulated chunk by chunk, and their merge.

use std::collections::BTreeMap;

use millstream_batch::Count;
use millstream_format::{Projection, RawChunk};

use super::counts::TermCounts;
use super::moments::Accumulator;
use super::{
    Analysis, LabelStatistics, LearnedVocabulary, Moments, NumberStatistics, Term, learns_statistics,
    learns_terms,
};
use crate::Error;
use crate::bad_records::BadRecords;
use crate::spec::{FeatureKind, FeatureSpec, LabelSpec, Terms};
use crate::transform::column::{Elements, Missing, NUMBERS, Number, Single, TEXTS, numbers, texts};
use crate::transform::fault::{Fault, Problem, reject_faulty_rows, wrong_type};
use crate::transform::label::Label;
use crate::transform::logarithm::signed_log1p;
use crate::transform::project;

/// Distinct label values kept for error messages.
const MAX_SEEN_VALUES: usize = 1000;
/// Label values shown in an error message.
const MAX_REPORTED_VALUES: usize = 5;

/// Which columns are counted, and how.
pub(super) struct Plan {
    pub(super) projection: Projection,
    missing: Missing,
    labels: Vec<Label>,
    /// Columns whose statistics are computed.
    numbers: Vec<usize>,
    /// Columns whose terms are counted.
    terms: Vec<usize>,
    vocabulary_bytes: usize,
}

/// The counts of one split, or of all splits merged so far.
pub(super) struct Partial {
    pub(super) rows: u64,
    labels: Vec<LabelCounts>,
    numbers: Vec<NumberCounts>,
    terms: Vec<ColumnTerms>,
}

#[derive(Clone)]
struct LabelCounts {
    /// Whether the label distinguishes positive from negative rows.
    has_positives: bool,
    positives: u64,
    numbers: Accumulator,
    /// Rows per class, for a label of classes.
    classes: Vec<u64>,
    /// The label's distinct values, up to [`MAX_SEEN_VALUES`].
    seen: BTreeMap<Vec<u8>, u64>,
}

#[derive(Clone, Copy)]
struct NumberCounts {
    missing: u64,
    minimum: f64,
    maximum: f64,
    plain: Accumulator,
    logarithm: Accumulator,
}

struct ColumnTerms {
    values: u64,
    missing: u64,
    counts: TermCounts,
}

/// A chunk's decoded numbers and labels, before any row is counted.
struct Read {
    /// `[L][rows]`
    labels: Vec<Vec<f32>>,
    numbers: Vec<(Elements, Vec<Number>)>,
}

impl Plan {
    pub(super) fn new(
        features: &[FeatureSpec],
        label: &LabelSpec,
        missing: &[String],
        vocabulary_bytes: usize,
    ) -> Self {
        let mut projection = Projection::default();
        let mut columns = |learns: fn(&FeatureSpec) -> bool| {
            let learning = features.iter().filter(|feature| learns(feature));
            let mut columns: Vec<usize> = learning
                .map(|feature| project(&mut projection, &feature.columns[0], feature.maximum.is_some()))
                .collect();
            columns.sort_unstable();
            columns.dedup();
            columns
        };
        let numbers = columns(learns_statistics);
        let terms = columns(learns_terms);
        let labels = label.all().map(|label| Label::new(label, &mut projection)).collect();
        Self { projection, missing: Missing::new(missing), labels, numbers, terms, vocabulary_bytes }
    }

    /// Empty counts.
    pub(super) fn start(&self) -> Partial {
        let number = NumberCounts {
            missing: 0,
            minimum: f64::INFINITY,
            maximum: f64::NEG_INFINITY,
            plain: Accumulator::default(),
            logarithm: Accumulator::default(),
        };
        let terms = || ColumnTerms { values: 0, missing: 0, counts: TermCounts::new(self.vocabulary_bytes) };
        Partial {
            rows: 0,
            labels: self.labels.iter().map(LabelCounts::of).collect(),
            numbers: vec![number; self.numbers.len()],
            terms: self.terms.iter().map(|_| terms()).collect(),
        }
    }

    /// Counts a chunk. A row with an unusable number or label is not counted at all.
    pub(super) fn count(&self, raw: &RawChunk, bad: &BadRecords, partial: &mut Partial) -> Result<(), Error> {
        let mut faults = Vec::new();
        let read = self.read(raw, &mut faults)?;
        let keep = reject_faulty_rows(raw, faults, bad)?;
        let kept = |row: usize| keep.as_ref().is_none_or(|keep| keep[row]);
        for row in (0..raw.rows()).filter(|&row| kept(row)) {
            partial.rows += 1;
            for (labels, counts) in read.labels.iter().zip(&mut partial.labels) {
                let label = labels[row];
                counts.positives += u64::from(label > 0.0);
                counts.numbers.add(label.into());
                if let Some(rows) = counts.classes.get_mut(label as usize) {
                    *rows += 1;
                }
            }
        }
        for ((elements, numbers), counts) in read.numbers.iter().zip(&mut partial.numbers) {
            for row in (0..raw.rows()).filter(|&row| kept(row)) {
                match elements.single(row) {
                    Single::One(element) => counts.add(numbers[element]),
                    _ => counts.add(Number::Absent),
                }
            }
        }
        for (start, rows) in runs(keep.as_deref(), raw.rows()) {
            self.count_texts(raw, start, rows, partial)?;
        }
        Ok(())
    }

    /// Decodes labels and numbers, and records faults for unusable ones.
    fn read(&self, raw: &RawChunk, faults: &mut Vec<Fault>) -> Result<Read, Error> {
        let labels = self.labels.iter().map(|label| label.read(raw, &self.missing, faults));
        let labels = labels.collect::<Result<Vec<_>, _>>()?;
        let mut read = Vec::with_capacity(self.numbers.len());
        for &column in &self.numbers {
            let elements = Elements::of(raw.columns().column(column));
            let numbers = numbers(&elements.leaf, &self.missing, |number| number)
                .ok_or_else(|| wrong_type(raw, column, NUMBERS))?;
            for row in 0..raw.rows() {
                let problem = match elements.single(row) {
                    Single::One(element) if unusable(numbers[element]) => {
                        Problem::Unusable { element, expected: "a number" }
                    }
                    Single::Several(count) => Problem::Several(count),
                    _ => continue,
                };
                faults.push(Fault { row, column, problem });
            }
            read.push((elements, numbers));
        }
        Ok(Read { labels, numbers: read })
    }

    /// Counts the terms and the label values of `rows` rows, starting at row `start`.
    fn count_texts(
        &self,
        raw: &RawChunk,
        start: usize,
        rows: usize,
        partial: &mut Partial,
    ) -> Result<(), Error> {
        for (&column, terms) in self.terms.iter().zip(&mut partial.terms) {
            let elements = Elements::of(&raw.columns().column(column).slice(start, rows));
            let mut present = 0;
            let count = |text: &[u8]| {
                present += 1;
                terms.counts.add(text);
            };
            texts(&elements.leaf, &self.missing, (), count).ok_or_else(|| wrong_type(raw, column, TEXTS))?;
            terms.values += present;
            terms.missing += elements.leaf.len() as u64 - present;
        }
        // Label values are reported only for a label that is never positive.
        for (label, counts) in
            self.labels.iter().zip(&mut partial.labels).filter(|(_, counts)| !counts.has_required_positive())
        {
            let elements = Elements::of(&raw.columns().column(label.column).slice(start, rows));
            let note = |text: &[u8]| {
                if let Some(count) = counts.seen.get_mut(text) {
                    *count += 1;
                } else if counts.seen.len() < MAX_SEEN_VALUES {
                    counts.seen.insert(text.to_vec(), 1);
                }
            };
            texts(&elements.leaf, &self.missing, (), note)
                .ok_or_else(|| wrong_type(raw, label.column, TEXTS))?;
        }
        Ok(())
    }

    /// Extracts the statistics that the features need.
    pub(super) fn analysis(&self, total: &Partial, features: &[FeatureSpec]) -> Result<Analysis, Error> {
        let name = |column: usize| self.projection.columns[column].name.clone();
        let mut numbers = BTreeMap::new();
        for (&column, counts) in self.numbers.iter().zip(&total.numbers) {
            numbers.insert(name(column), counts.statistics(&name(column), total.rows)?);
        }
        let mut vocabularies = BTreeMap::new();
        for feature in features.iter().filter(|feature| learns_terms(feature)) {
            let counted = self.terms.iter().zip(&total.terms);
            let counted =
                counted.filter(|&(&column, _)| self.projection.columns[column].name == feature.columns[0]);
            for (_, terms) in counted {
                vocabularies.insert(feature.name.clone(), terms.vocabulary(&feature.kind));
            }
        }
        let mut labels = total.labels.iter().map(LabelCounts::statistics);
        let (label, more_labels) = (labels.next(), labels.collect());
        let stored_types = BTreeMap::new();
        Ok(Analysis { rows: total.rows, label, more_labels, numbers, vocabularies, stored_types })
    }
}

impl Partial {
    /// Adds the counts of the splits that follow.
    pub(super) fn merge(&mut self, other: Self) {
        self.rows += other.rows;
        for (labels, other) in self.labels.iter_mut().zip(other.labels) {
            labels.merge(other);
        }
        for (numbers, other) in self.numbers.iter_mut().zip(&other.numbers) {
            numbers.missing += other.missing;
            numbers.minimum = numbers.minimum.min(other.minimum);
            numbers.maximum = numbers.maximum.max(other.maximum);
            numbers.plain.merge(&other.plain);
            numbers.logarithm.merge(&other.logarithm);
        }
        for (terms, other) in self.terms.iter_mut().zip(&other.terms) {
            terms.values += other.values;
            terms.missing += other.missing;
            terms.counts.merge(&other.counts);
        }
    }

    /// Whether there were rows, and each label that distinguishes positives had one.
    pub(super) fn has_required_positives(&self) -> bool {
        self.rows > 0 && self.labels.iter().all(LabelCounts::has_required_positive)
    }

    /// Rejects data with a label that is never positive.
    pub(super) fn check(&self, spec: &LabelSpec) -> Result<(), Error> {
        let Some((label, counts)) =
            spec.all().zip(&self.labels).find(|(_, counts)| !counts.has_required_positive())
        else {
            return Ok(());
        };
        let mut seen: Vec<(&Vec<u8>, u64)> =
            counts.seen.iter().map(|(value, &count)| (value, count)).collect();
        seen.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let seen = seen
            .iter()
            .take(MAX_REPORTED_VALUES)
            .map(|(value, _)| String::from_utf8_lossy(value).into_owned());
        Err(Error::NeverPositive {
            column: label.column.clone(),
            positive: label.positive.clone(),
            records: self.rows,
            seen: seen.collect(),
        })
    }
}

impl LabelCounts {
    fn of(label: &Label) -> Self {
        Self {
            has_positives: label.kind.has_positives(),
            positives: 0,
            numbers: Accumulator::default(),
            classes: vec![0; label.kind.classes()],
            seen: BTreeMap::new(),
        }
    }

    /// Whether a positive row was seen, or none is required.
    fn has_required_positive(&self) -> bool {
        !self.has_positives || self.positives > 0
    }

    fn statistics(&self) -> LabelStatistics {
        LabelStatistics {
            positives: self.positives,
            mean: self.numbers.mean(),
            is_number: !self.has_positives && self.classes.is_empty(),
            classes: self.classes.clone(),
        }
    }

    fn merge(&mut self, other: Self) {
        self.positives += other.positives;
        self.numbers.merge(&other.numbers);
        for (rows, others) in self.classes.iter_mut().zip(&other.classes) {
            *rows += others;
        }
        for (value, count) in other.seen {
            if self.seen.len() < MAX_SEEN_VALUES || self.seen.contains_key(&value) {
                *self.seen.entry(value).or_default() += count;
            }
        }
    }
}

impl NumberCounts {
    fn add(&mut self, number: Number) {
        let Number::Value(value) = number else {
            self.missing += 1;
            return;
        };
        self.minimum = self.minimum.min(value);
        self.maximum = self.maximum.max(value);
        self.plain.add(value);
        self.logarithm.add(signed_log1p(value));
    }

    fn statistics(&self, column: &str, rows: u64) -> Result<NumberStatistics, Error> {
        if self.plain.count() == 0 {
            return Err(Error::Invalid(format!(
                "column `{column}`: all values are missing in {}",
                Count(rows, "record")
            )));
        }
        let moments = |of: &Accumulator| Moments { mean: of.mean(), deviation: of.deviation() };
        let statistics = NumberStatistics {
            values: self.plain.count(),
            missing: self.missing,
            minimum: self.minimum,
            maximum: self.maximum,
            plain: moments(&self.plain),
            logarithm: moments(&self.logarithm),
        };
        let range = self.maximum - self.minimum;
        if [statistics.plain.mean, statistics.plain.deviation, range].iter().all(|value| value.is_finite()) {
            return Ok(statistics);
        }
        Err(Error::Invalid(format!(
            "column `{column}`: the range {} to {} overflows its statistics",
            self.minimum, self.maximum
        )))
    }
}

impl ColumnTerms {
    fn vocabulary(&self, kind: &FeatureKind) -> LearnedVocabulary {
        let (most, least) = match kind {
            FeatureKind::Vocabulary { terms: Terms::Learned { max_terms, min_count }, .. } => {
                (*max_terms as usize, *min_count)
            }
            _ => (0, 0),
        };
        let sorted = self.counts.by_count();
        let kept = sorted.iter().take(most).take_while(|&&(_, count)| count >= least);
        LearnedVocabulary {
            values: self.values,
            missing: self.missing,
            distinct: sorted.len() as u64,
            undercount: self.counts.undercount(),
            terms: kept.map(|&(bytes, count)| Term { bytes: bytes.to_vec(), count }).collect(),
        }
    }
}

/// Whether a number is present but not finite: statistics can use neither NaN nor infinities.
fn unusable(number: Number) -> bool {
    match number {
        Number::Value(value) => !value.is_finite(),
        Number::Unreadable => true,
        Number::Absent => false,
    }
}

/// The runs of consecutive rows to keep, as (first row, number of rows).
fn runs(keep: Option<&[bool]>, rows: usize) -> Vec<(usize, usize)> {
    let Some(keep) = keep else { return vec![(0, rows)] };
    let mut start = 0;
    let mut runs = Vec::new();
    for run in keep.chunk_by(|a, b| a == b) {
        if run[0] {
            runs.push((start, run.len()));
        }
        start += run.len();
    }
    runs
}
