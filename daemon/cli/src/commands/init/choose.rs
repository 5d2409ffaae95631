//! Chooses the label and the features of a job by statistics of the columns.
//!
//! | column | feature |
//! |---|---|
//! | text with few distinct values | `vocabulary` |
//! | text with more, integers that are ids | `hashed`, several times as many buckets as values |
//! | integers with very few distinct values | `vocabulary` |
//! | other numbers | `numeric`, scaled, and `bucketized` at their quantiles |
//! | lists of text or integers | the same kinds with `multi` |
//!
//! Columns without values, with one value in all rows, with another value in nearly every row, and of types without a
//! feature are left out. So are dates and times, also as numbers since 1970 (`moments`), and a column of row weights.

use std::collections::BTreeSet;

use millstream_tools::sample::{Sample, SampledColumn, ValueKind};
use millstream_tools::typed::with_decimal_point;

use crate::failure::Failure;
use crate::figures;

use super::moments;

/// Names of columns that are probably the label, the most probable first.
const LABEL_NAMES: [&str; 22] = [
    "label",
    "target",
    "clicked",
    "click",
    "is_click",
    "converted",
    "conversion",
    "is_converted",
    "purchased",
    "bought",
    "income",
    "churned",
    "churn",
    "survived",
    "fraud",
    "is_fraud",
    "default",
    "rating",
    "outcome",
    "response",
    "class",
    "y",
];

/// Values of a label that are probably the positive one.
const POSITIVE_VALUES: [&str; 14] = [
    "1", "true", "yes", "y", "t", "positive", "pos", "click", "clicked", "churned", "ja", "oui", "si", "sim",
];

/// Text that usually means "missing".
const MISSING_VALUES: [&str; 12] =
    ["?", "NA", "N/A", "n/a", "na", "NULL", "null", "None", "NaN", "nan", "-", "\\N"];

/// Names of columns that hold the weights of rows. The last one also is a quantity: see `Column::is_weight`.
const WEIGHT_NAMES: [&str; 7] = [
    "sample_weight",
    "example_weight",
    "instance_weight",
    "row_weight",
    "sampleweight",
    "importance_weight",
    PLAIN_WEIGHT,
];
const PLAIN_WEIGHT: &str = "weight";

/// Words in the names of integer columns that are ids.
const ID_WORDS: [&str; 10] =
    ["id", "ids", "code", "zip", "zipcode", "postcode", "sku", "isbn", "key", "hash"];

/// The most distinct values of a vocabulary, of integers that become one, and of a label with classes.
const MAX_TERMS: usize = 1000;
const MAX_WHOLE_TERMS: usize = 12;
const MAX_CLASSES: usize = 100;
/// Buckets for each distinct value of a hashed feature: with four times as many, one value in five shares its bucket.
const BUCKETS_PER_VALUE: u64 = 4;
const MAX_BUCKETS: u64 = 10_000_000;
/// A column with more distinct values than this share of its rows identifies rows.
const UNIQUE_SHARE: f64 = 0.9;
/// Fewer rows do not show whether a column identifies them.
const MIN_UNIQUE_ROWS: u64 = 50;
/// Intervals of a bucketized feature, and the fewest distinct numbers for one.
const INTERVALS: usize = 12;
const MIN_BUCKETIZED: usize = 16;
/// With more columns, numbers have no intervals besides.
const MAX_NARROW: usize = 200;
/// Numbers at least this skewed, and not negative, are scaled by their logarithm.
const SKEWED: f64 = 2.0;
/// Larger whole numbers are ids, whatever the name.
const MAX_QUANTITY: f64 = 2_147_483_648.0;
/// The longest vector that a job file allows.
const MAX_VECTOR: usize = 4_096;
/// The most values of a row that a feature keeps.
const MAX_VALUES: usize = 50;

/// Why the weights of rows are not a feature.
const WHY_WEIGHT: &str =
    "by its name the weight of rows, see [label]; write it into [features] if it is a quantity";

/// The columns of a job.
pub(super) struct Choice {
    pub(super) label: Label,
    /// A column that probably holds the weights of rows.
    pub(super) weight: Option<String>,
    pub(super) features: Vec<Feature>,
    /// Columns that are not used, and why.
    pub(super) left_out: Vec<(String, String)>,
    /// Values that mean "missing".
    pub(super) missing: BTreeSet<String>,
}

/// The label.
pub(super) struct Label {
    pub(super) column: String,
    pub(super) task: Task,
    /// Whether some rows have no label.
    pub(super) has_absent: bool,
    /// Why this column.
    pub(super) why: String,
}

/// What a label is.
pub(super) enum Task {
    /// Two classes. The positive value, unless the column holds 0 and 1.
    Binary(Option<String>),
    /// More classes.
    Classes(Vec<String>),
    /// A number.
    Number,
}

/// A feature.
pub(super) struct Feature {
    pub(super) name: String,
    pub(super) column: String,
    pub(super) kind: Kind,
    /// The maximum number of values, for several.
    pub(super) maximum: Option<usize>,
    /// The figures that led to it.
    pub(super) why: String,
}

/// The kind of a feature.
pub(super) enum Kind {
    Numeric { normalize: &'static str, has_absent: bool },
    Vector { size: usize, has_absent: bool },
    Bucketized(Vec<f64>),
    Vocabulary,
    Hashed(u64),
}

/// What the user has decided.
pub(super) struct Wishes<'a> {
    pub(super) label: Option<&'a str>,
    pub(super) positive: Option<&'a str>,
}

impl Choice {
    /// Chooses by `sample`.
    ///
    /// # Errors
    /// When there is no such label, or none that can be guessed.
    pub(super) fn of(sample: &Sample, wishes: &Wishes<'_>) -> Result<Self, Failure> {
        let missing = missing_values(sample);
        let columns: Vec<_> =
            sample.columns.iter().map(|column| Column::of(column, sample, &missing)).collect();
        let label = label(&columns, wishes)?;
        let weight = weight(&columns, &label);
        let (mut features, mut left_out) = (Vec::new(), Vec::new());
        let mut names = BTreeSet::new();
        for column in columns.iter().filter(|column| column.name() != label.column) {
            let chosen = match weight {
                Some(weight) if weight == column.name() => Err(WHY_WEIGHT.to_owned()),
                _ => column.features(),
            };
            match chosen {
                Ok(chosen) => features.extend(chosen.into_iter().map(|mut feature| {
                    feature.name = unique(&feature.name, &mut names);
                    feature
                })),
                Err(why) => left_out.push((column.name().to_owned(), why)),
            }
        }
        if features.is_empty() {
            let columns: Vec<_> = left_out.iter().map(|(name, why)| format!("`{name}` ({why})")).collect();
            let message = match columns.as_slice() {
                [] => format!("there are no columns besides the label `{}`", label.column),
                columns => format!("no column can be a feature: {}", columns.join(", ")),
            };
            return Err(Failure::Failed(anyhow::anyhow!(message)));
        }
        let weight = weight.map(str::to_owned);
        Ok(Self { label, weight, features, left_out, missing })
    }
}

/// The column that holds the weights of rows, the most probable one.
fn weight<'a>(columns: &'a [Column<'_>], label: &Label) -> Option<&'a str> {
    let weights: Vec<_> = columns.iter().filter(|column| column.is_weight()).map(Column::name).collect();
    let named = |name: &&str| weights.iter().find(|weight| weight.eq_ignore_ascii_case(name)).copied();
    WEIGHT_NAMES.iter().find_map(named).filter(|weight| *weight != label.column)
}

/// The usual texts for "missing" that occur beside other values, and numbers that are not finite.
fn missing_values(sample: &Sample) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for column in &sample.columns {
        let (marks, others): (Vec<_>, Vec<_>) =
            column.counts.keys().partition(|value| is_missing(value, column.kind));
        // NA is Namibia among the codes of countries.
        let are_codes = !others.is_empty() && others.iter().all(|value| is_code(value));
        if !others.is_empty() {
            found.extend(
                marks.iter().map(|mark| mark.trim().to_owned()).filter(|mark| mark != "NA" || !are_codes),
            );
        }
    }
    found
}

fn is_missing(value: &str, kind: ValueKind) -> bool {
    let is_not_finite = || value.trim().parse::<f64>().is_ok_and(|number| !number.is_finite());
    MISSING_VALUES.contains(&value.trim()) || kind == ValueKind::Numbers && is_not_finite()
}

/// Whether a value has the form of a country's code (ISO 3166-1 alpha-2).
fn is_code(value: &str) -> bool {
    value.len() == 2 && value.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// A column, with the figures by which it is judged.
struct Column<'a> {
    sampled: &'a SampledColumn,
    rows: u64,
    is_whole_sample: bool,
    /// Whether there are few enough columns for a second feature of each.
    is_narrow: bool,
    /// Rows without a value, or with one that means "missing".
    absent: u64,
    /// Values that do not mean "missing", and the number of distinct ones.
    present: u64,
    distinct: usize,
    /// The numbers, sorted, if all values are numbers.
    numbers: Option<Vec<f64>>,
}

impl<'a> Column<'a> {
    fn of(sampled: &'a SampledColumn, sample: &Sample, missing: &BTreeSet<String>) -> Self {
        let marked: Vec<_> = sampled
            .counts
            .iter()
            .filter(|(value, _)| missing.contains(value.trim()))
            .map(|(_, &count)| count)
            .collect();
        let marked_values: u64 = marked.iter().sum();
        let present = sampled.values - marked_values;
        let is_numeric = !matches!(sampled.kind, ValueKind::Moments | ValueKind::Other | ValueKind::Nothing);
        // Values beyond those counted are not known to be numbers.
        let are_numbers = is_numeric && !sampled.has_more && sampled.number_count == present;
        let are_numbers = are_numbers || (sampled.kind == ValueKind::Numbers && !sampled.numbers.is_empty());
        let numbers = are_numbers.then(|| {
            let mut numbers = sampled.numbers.clone();
            numbers.sort_by(f64::total_cmp);
            numbers
        });
        Self {
            sampled,
            rows: sample.rows,
            is_whole_sample: sample.is_whole,
            is_narrow: sample.columns.len() <= MAX_NARROW,
            absent: (sample.rows - sampled.filled) + if sampled.most_values > 1 { 0 } else { marked_values },
            present,
            distinct: sampled.counts.len() - marked.len(),
            numbers,
        }
    }

    fn name(&self) -> &str {
        &self.sampled.name
    }

    /// `41 distinct values, 0.2 % absent`
    fn figures(&self) -> String {
        let at_least = if self.sampled.has_more { "more than " } else { "" };
        let distinct = figures::count(self.distinct as u64);
        let values = if self.distinct == 1 { "value" } else { "values" };
        let absent = self.absent as f64 / self.rows.max(1) as f64;
        let absent =
            if self.absent > 0 { format!(", {} absent", figures::percent(absent)) } else { String::new() };
        format!("{at_least}{distinct} distinct {values}{absent}")
    }

    /// Its features, or why it has none.
    fn features(&self) -> Result<Vec<Feature>, String> {
        match self.sampled.kind {
            ValueKind::Nothing => return Err("no values".to_owned()),
            ValueKind::Moments => {
                let part = if self.sampled.type_name == "date" { "month" } else { "hour" };
                return Err(format!(
                    "{}; write its {part} or weekday into a column to use it",
                    self.sampled.type_name
                ));
            }
            ValueKind::Other => {
                return Err(format!("{}, of which there is no feature", self.sampled.type_name));
            }
            ValueKind::Numbers | ValueKind::Texts if self.distinct == 0 => return Err("no values".to_owned()),
            ValueKind::Numbers | ValueKind::Texts if self.distinct == 1 && self.absent == 0 => {
                return Err("the same value in every row".to_owned());
            }
            // Whether a row has the value is itself information.
            ValueKind::Numbers | ValueKind::Texts if self.distinct == 1 => {
                return Ok(vec![self.feature(Kind::Vocabulary)]);
            }
            ValueKind::Numbers | ValueKind::Texts => {}
        }
        if let Some(why) = self.why_moments() {
            return Err(why);
        }
        let is_list = self.sampled.most_values > 1;
        let distinct = if self.sampled.has_more { self.present } else { self.distinct as u64 };
        // An id that ever repeats is that of something else than rows.
        let most_share = if self.has_id_name() { 1.0 } else { UNIQUE_SHARE };
        let identifies =
            distinct as f64 >= most_share * self.present as f64 && self.present >= MIN_UNIQUE_ROWS;
        match &self.numbers {
            Some(_) if is_list && self.vector_size().is_some() => {
                let (size, has_absent) = (self.sampled.most_values, self.absent > 0);
                let absent = if has_absent { ", absent in some" } else { "" };
                let why = format!("{size} numbers per row{absent}");
                Ok(vec![Feature { why, maximum: None, ..self.feature(Kind::Vector { size, has_absent }) }])
            }
            Some(numbers) if is_list && !self.sampled.is_whole() => {
                let first = numbers.len();
                Err(format!("a list of numbers ({first} in the sample), of which there is no feature"))
            }
            Some(numbers) if !is_list && !self.is_id(numbers) => {
                if self.sampled.is_whole() && self.distinct <= MAX_WHOLE_TERMS {
                    return Ok(vec![self.feature(Kind::Vocabulary)]);
                }
                if identifies && self.sampled.is_whole() && is_sequence(numbers) {
                    return Err("numbers the rows".to_owned());
                }
                Ok(self.number(numbers))
            }
            None if self.has_decimal_commas() => Err(format!(
                "numbers with a decimal comma; `millstream convert --type '{}=number:,'` makes them numbers",
                self.name()
            )),
            _ if identifies && !is_list => Err(format!("identifies rows, or free text: {}", self.figures())),
            _ if self.distinct <= MAX_TERMS && !self.sampled.has_more => {
                Ok(vec![self.feature(Kind::Vocabulary)])
            }
            _ => {
                // A part of the data does not show all values.
                let factor = if self.is_whole_sample { BUCKETS_PER_VALUE } else { 4 * BUCKETS_PER_VALUE };
                Ok(vec![
                    self.feature(Kind::Hashed(round_up(distinct.saturating_mul(factor)).min(MAX_BUCKETS))),
                ])
            }
        }
    }

    /// A scaled number, and its intervals if it has enough values.
    fn number(&self, numbers: &[f64]) -> Vec<Feature> {
        let is_skewed = numbers[0] >= 0.0 && skewness(numbers) > SKEWED;
        let normalize = if is_skewed { "log1p_zscore" } else { "zscore" };
        // Rows outside of the sample may lack a value, too.
        let has_absent = self.absent > 0 || self.sampled.not_finite > 0 || !self.is_whole_sample;
        let range = format!("{} to {}", short(numbers[0]), short(numbers[numbers.len() - 1]));
        let why = format!("{range}, {}", self.figures());
        let mut features = vec![Feature { why, ..self.feature(Kind::Numeric { normalize, has_absent }) }];
        let boundaries = quantiles(numbers);
        if self.is_narrow && self.distinct >= MIN_BUCKETIZED && boundaries.len() > 1 {
            let name = format!("{}_bucket", name_of(self.name()));
            features.push(Feature { name, why: String::new(), ..self.feature(Kind::Bucketized(boundaries)) });
        }
        features
    }

    /// The length of lists of numbers that are all equally long. Whole numbers are ids.
    fn vector_size(&self) -> Option<usize> {
        let SampledColumn { filled, most_values, values, not_finite, .. } = *self.sampled;
        let is_full = values == filled * most_values as u64 && not_finite == 0;
        (is_full && !self.sampled.is_whole() && most_values <= MAX_VECTOR).then_some(most_values)
    }

    fn feature(&self, kind: Kind) -> Feature {
        let most = self.sampled.most_values;
        Feature {
            name: name_of(self.name()),
            column: self.name().to_owned(),
            kind,
            maximum: (most > 1).then_some(most.min(MAX_VALUES)),
            why: self.figures(),
        }
    }

    /// Whether all values are numbers if a comma is read as the decimal point, and some have one.
    fn has_decimal_commas(&self) -> bool {
        let mut values = self.sampled.counts.keys().filter(|value| !is_missing(value, self.sampled.kind));
        let is_number =
            |value: &String| with_decimal_point(value).is_some_and(|value| value.parse::<f64>().is_ok());
        self.sampled.counts.keys().any(|value| value.contains(',')) && values.all(is_number)
    }

    /// Whether it holds a positive number in each row, and has the name of a weight of rows. Whole numbers that are just
    /// a `weight` are more probably those of people or goods.
    fn is_weight(&self) -> bool {
        let is_named = WEIGHT_NAMES.iter().any(|name| self.name().eq_ignore_ascii_case(name));
        let is_sure = !self.name().eq_ignore_ascii_case(PLAIN_WEIGHT) || !self.sampled.is_whole();
        let is_complete = self.absent == 0 && self.sampled.not_finite == 0 && self.sampled.most_values == 1;
        let lowest = self.numbers.as_ref().and_then(|numbers| numbers.first());
        is_named && is_sure && is_complete && lowest.is_some_and(|&lowest| lowest > 0.0) && self.distinct > 1
    }

    /// Why it is not a feature, if its numbers are moments.
    fn why_moments(&self) -> Option<String> {
        let numbers =
            self.numbers.as_ref().filter(|_| self.sampled.most_values == 1 && !self.has_id_name())?;
        moments::why_left_out(
            self.name(),
            numbers,
            !self.sampled.has_more && self.distinct <= MAX_WHOLE_TERMS,
        )
    }

    /// Whether whole numbers are ids, not quantities.
    fn is_id(&self, numbers: &[f64]) -> bool {
        if !self.sampled.is_whole() {
            return false;
        }
        let (low, high) = (numbers[0], numbers[numbers.len() - 1]);
        self.has_id_name() || low < -MAX_QUANTITY || high > MAX_QUANTITY
    }

    fn has_id_name(&self) -> bool {
        let lower = self.name().to_lowercase();
        let mut words = lower.split(|char: char| !char.is_alphanumeric());
        words.any(|word| ID_WORDS.contains(&word)) || self.name().ends_with("Id")
    }
}

/// The label that the user names, or the most probable one.
fn label(columns: &[Column<'_>], wishes: &Wishes<'_>) -> Result<Label, Failure> {
    if let Some(wanted) = wishes.label {
        let Some(column) = columns.iter().find(|column| column.name() == wanted) else {
            let names: Vec<_> = columns.iter().map(|column| format!("`{}`", column.name())).collect();
            return Err(Failure::Usage(format!("no column `{wanted}`; there are {}", names.join(", "))));
        };
        return label_of(column, wishes.positive, "as given".to_owned()).ok_or_else(|| {
            Failure::Usage(format!("column `{wanted}` cannot be a label: {}", column.figures()))
        });
    }
    let named = LABEL_NAMES.iter().find_map(|name| {
        let column = columns.iter().find(|column| column.name().eq_ignore_ascii_case(name))?;
        label_of(column, wishes.positive, "guessed by its name".to_owned())
    });
    let two_valued: Vec<_> =
        columns.iter().filter(|column| column.distinct == 2 && column.sampled.most_values == 1).collect();
    let only = || match two_valued.as_slice() {
        [only] => label_of(only, wishes.positive, "guessed: the only column with two values".to_owned()),
        [.., last] if columns.last().is_some_and(|end| end.name() == last.name()) => {
            label_of(last, wishes.positive, "guessed: the last column, with two values".to_owned())
        }
        _ => None,
    };
    named.or_else(only).ok_or_else(|| {
        let candidates = if two_valued.is_empty() { columns.iter().collect() } else { two_valued };
        let names: Vec<_> = candidates.iter().take(8).map(|column| format!("`{}`", column.name())).collect();
        Failure::Usage(format!(
            "which column is the label? Give it with --label, for example {}",
            names.join(", ")
        ))
    })
}

/// `column` as a label; `None` if it cannot be one.
fn label_of(column: &Column<'_>, positive: Option<&str>, why: String) -> Option<Label> {
    if column.sampled.most_values != 1
        || column.distinct < 2
        || column.sampled.has_more && column.numbers.is_none()
    {
        return None;
    }
    let task = match (&column.numbers, positive) {
        (_, Some(positive)) => Task::Binary(Some(positive.to_owned())),
        (Some(numbers), None) if numbers.iter().all(|number| (0.0..=1.0).contains(number)) => {
            Task::Binary(None)
        }
        (Some(_), None) if column.distinct > 2 => Task::Number,
        _ => {
            let mut values = column.sampled.top(MAX_CLASSES + 1);
            values.retain(|(value, _)| !MISSING_VALUES.contains(&value.trim()));
            if values.len() == 2 {
                let known = values.iter().find(|(value, _)| {
                    POSITIVE_VALUES.contains(&value.trim().to_lowercase().as_str())
                        || value.trim().starts_with('>')
                });
                // Otherwise the rarer value.
                let (value, _) = known.unwrap_or(&values[1]);
                Task::Binary(Some((*value).to_owned()))
            } else if values.len() <= MAX_CLASSES {
                let mut classes: Vec<_> = values.into_iter().map(|(value, _)| value.to_owned()).collect();
                classes.sort();
                Task::Classes(classes)
            } else {
                return None;
            }
        }
    };
    let why = format!("{why}; {}", column.figures());
    Some(Label { column: column.name().to_owned(), task, has_absent: column.absent > 0, why })
}

/// Whether sorted whole numbers have hardly any gaps.
fn is_sequence(numbers: &[f64]) -> bool {
    numbers[numbers.len() - 1] - numbers[0] < 1.1 * numbers.len() as f64
}

/// The boundaries of intervals with about as many of the sorted numbers each. If more than half of the numbers equal the
/// lowest one, as in a column of mostly zeros, those have an interval of their own.
fn quantiles(numbers: &[f64]) -> Vec<f64> {
    let lowest = numbers[0];
    let first_above = numbers.partition_point(|&number| number <= lowest);
    let is_mostly_lowest = first_above > numbers.len() / 2;
    let spread = if is_mostly_lowest { &numbers[first_above..] } else { numbers };
    let at = |nth: usize| spread.get(nth * spread.len() / INTERVALS).copied();
    let nths = usize::from(!is_mostly_lowest)..INTERVALS;
    let mut boundaries: Vec<f64> = nths.filter_map(at).map(rounded).filter(|&at| at > lowest).collect();
    boundaries.dedup();
    boundaries
}

/// A number to four significant digits.
fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

/// A number in few characters.
fn short(number: f64) -> String {
    let number = rounded(number);
    if number.abs() >= 1e7 || (number != 0.0 && number.abs() < 1e-4) {
        format!("{number:e}")
    } else {
        number.to_string()
    }
}

/// The third standardized moment.
fn skewness(numbers: &[f64]) -> f64 {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let moment = |power: i32| numbers.iter().map(|number| (number - mean).powi(power)).sum::<f64>() / count;
    let deviation = moment(2).sqrt();
    if deviation > 0.0 { moment(3) / deviation.powi(3) } else { 0.0 }
}

/// The next number of the form 1, 2 or 5 times a power of ten.
fn round_up(number: u64) -> u64 {
    let steps = (0..19).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
    steps.into_iter().find(|&step| step >= number).unwrap_or(u64::MAX)
}

/// A feature's name for a column: letters, digits and underscores.
fn name_of(column: &str) -> String {
    let name: String =
        column.chars().map(|char| if char.is_alphanumeric() || char == '_' { char } else { '_' }).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

/// `name`, or `name_2` and so on if it is taken.
fn unique(name: &str, taken: &mut BTreeSet<String>) -> String {
    let candidates = std::iter::once(name.to_owned()).chain((2..).map(|nth: u64| format!("{name}_{nth}")));
    let free = candidates.into_iter().find(|name| !taken.contains(name)).unwrap_or_default();
    taken.insert(free.clone());
    free
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
