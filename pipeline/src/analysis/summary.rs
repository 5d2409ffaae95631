//! A human-readable summary of an analysis.

use std::fmt;

use millstream_batch::Count;

use super::{Analysis, LearnedVocabulary, NumberStatistics};

/// Displays an analysis, one line per column.
pub struct Summary<'a> {
    analysis: &'a Analysis,
}

impl<'a> Summary<'a> {
    pub(super) fn of(analysis: &'a Analysis) -> Self {
        Self { analysis }
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(label) = &self.analysis.label else { return writeln!(formatter, "nothing to learn") };
        let rows = self.analysis.rows;
        write!(formatter, "{}", Count(rows, "row"))?;
        for label in std::iter::once(label).chain(&self.analysis.more_labels) {
            let share = |part: u64| if rows == 0 { 0.0 } else { 100.0 * part as f64 / rows as f64 };
            match (label.classes.iter().min(), label.classes.iter().max()) {
                (Some(&least), Some(&most)) => {
                    let (classes, least, most) = (label.classes.len(), share(least), share(most));
                    write!(formatter, ", {classes} classes of {least:.2} to {most:.2} %")?;
                }
                _ if label.is_number => write!(formatter, ", mean label {:.4}", label.mean)?,
                _ => write!(formatter, ", {:.2} % positive", share(label.positives))?,
            }
        }
        writeln!(formatter)?;
        for (column, statistics) in &self.analysis.numbers {
            write_numbers(formatter, column, statistics)?;
        }
        for (feature, vocabulary) in &self.analysis.vocabularies {
            write_vocabulary(formatter, feature, vocabulary)?;
        }
        Ok(())
    }
}

fn write_numbers(formatter: &mut fmt::Formatter<'_>, column: &str, of: &NumberStatistics) -> fmt::Result {
    let NumberStatistics { minimum, maximum, missing, plain, .. } = of;
    writeln!(
        formatter,
        "{column}: {minimum} to {maximum}, mean {:.4}, deviation {:.4}, {missing} missing{}",
        plain.mean,
        plain.deviation,
        if minimum == maximum { " (constant: no information)" } else { "" },
    )
}

fn write_vocabulary(
    formatter: &mut fmt::Formatter<'_>,
    feature: &str,
    of: &LearnedVocabulary,
) -> fmt::Result {
    let kept: u64 = of.terms.iter().map(|term| term.count).sum();
    let covered = if of.values == 0 { 100.0 } else { 100.0 * kept as f64 / of.values as f64 };
    write!(
        formatter,
        "{feature}: {} of {}{} terms, {covered:.2} % of values, {} missing",
        of.terms.len(),
        if of.undercount > 0 { "more than " } else { "" },
        of.distinct,
        of.missing,
    )?;
    if of.undercount > 0 {
        write!(formatter, " (approximate: counts may be up to {} too low)", of.undercount)?;
    }
    writeln!(formatter)
}
