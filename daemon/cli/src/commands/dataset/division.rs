//! Splits as they are typed and printed: `train=80,test=20`, `train=..2026-11-01,test=2026-11-01..`.

use millstream_io::storage::{Division, Rule};

use crate::arguments::SplitChoice;
use crate::failure::Failure;
use crate::figures;
use crate::table::Table;

/// The seed of hashes. It differs from the default of `data.validation`, which would otherwise hold out rows of other splits:
/// none of those in `train`.
const SEED: u64 = 0x0073_706c_6974;

/// Between the ends of a range.
const RANGE: &str = "..";

impl SplitChoice {
    /// The division that was asked for, whose rows are not counted yet.
    ///
    /// # Errors
    /// What is wrong with it, and an example of what is right.
    pub(super) fn division(&self) -> Result<Option<Division>, Failure> {
        let Self { split, split_by, split_by_time } = self;
        if split.is_empty() {
            return Ok(None);
        }
        let wrong = |why: String| Failure::Usage(format!("--split {}: {why}", split.join(",")));
        let (names, parts): (Vec<String>, Vec<&str>) = split
            .iter()
            .map(|split| {
                let (name, part) = split.split_once('=').ok_or_else(|| {
                    wrong(format!("`{split}` has no share; give NAME=PERCENT, such as train=80,test=20"))
                })?;
                Ok((name.to_owned(), part))
            })
            .collect::<Result<Vec<_>, Failure>>()?
            .into_iter()
            .unzip();
        let rule = match split_by_time {
            Some(column) => {
                Rule::Order { column: column.clone(), bounds: bounds(&names, &parts).map_err(wrong)? }
            }
            None => {
                let percents = parts.iter().map(|part| percent(part)).collect::<Result<_, _>>();
                Rule::Hash { column: split_by.clone(), seed: SEED, percents: percents.map_err(wrong)? }
            }
        };
        Division::new(rule, names).map(Some).map_err(wrong)
    }
}

fn percent(part: &str) -> Result<f64, String> {
    if part.contains(RANGE) {
        return Err(format!(
            "`{part}` is a range; name the column whose values it holds with --split-by-time COLUMN, or give shares, such as \
             train=80,test=20"
        ));
    }
    let number = part.strip_suffix('%').unwrap_or(part);
    number
        .parse()
        .map_err(|_| format!("`{part}` is no percentage; give NAME=PERCENT, such as train=80,test=20"))
}

/// The bounds between ranges that follow each other.
fn bounds(names: &[String], parts: &[&str]) -> Result<Vec<String>, String> {
    let example = "such as train=..2026-11-01,test=2026-11-01..";
    let ranges = parts.iter().map(|part| {
        part.split_once(RANGE).ok_or_else(|| {
            format!("`{part}` is no range; with --split-by-time give NAME=FROM..TO, {example}")
        })
    });
    let ranges: Vec<(&str, &str)> = ranges.collect::<Result<_, _>>()?;
    for (before, pair) in ranges.windows(2).enumerate() {
        let ((_, end), (start, _)) = (pair[0], pair[1]);
        if end != start || end.is_empty() {
            let (one, other) = (&names[before], &names[before + 1]);
            return Err(format!(
                "`{one}` must end where `{other}` begins, so that each row is in one split, {example}; FROM belongs to its range, \
                 TO to the next"
            ));
        }
    }
    match (ranges.first(), ranges.last()) {
        (Some(("", _)), Some((_, ""))) => {}
        _ => return Err(format!("the first range has no FROM and the last no TO, {example}")),
    }
    Ok(ranges.iter().skip(1).map(|(start, _)| (*start).to_owned()).collect())
}

/// What decides, in words.
pub(super) fn rule(division: &Division) -> String {
    match &division.rule {
        Rule::Hash { column: Some(column), seed, .. } => format!("by the hash of {column}, seed {seed}"),
        Rule::Hash { column: None, seed, .. } => format!("by the hash of the row's place, seed {seed}"),
        Rule::Order { column, .. } => format!("by {column}"),
    }
}

/// What is in the split at `place`: a share or a range.
fn part(division: &Division, place: usize) -> String {
    match &division.rule {
        Rule::Hash { percents, .. } => {
            percents.get(place).map_or_else(String::new, |share| format!("{share} %"))
        }
        Rule::Order { bounds, .. } => {
            let from = place.checked_sub(1).and_then(|before| bounds.get(before)).map_or("", String::as_str);
            format!("{from}{RANGE}{}", bounds.get(place).map_or("", String::as_str))
        }
    }
}

/// In one line: names, what is in each, and the rule.
pub(super) fn summary(division: Option<&Division>) -> String {
    let Some(division) = division else { return "none".to_owned() };
    let parts: Vec<_> = division
        .names()
        .enumerate()
        .map(|(place, name)| format!("{name} {}", part(division, place)))
        .collect();
    format!("{} {}", parts.join(", "), rule(division))
}

/// A table with a line for each split.
pub(super) fn table(division: &Division) -> Table {
    let mut table = Table::with_titles(&["SPLIT", "PART", ">ROWS"]);
    for (place, split) in division.splits.iter().enumerate() {
        table.row([split.name.clone(), part(division, place), figures::count(split.rows)]);
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn choice(split: &str, by: Option<&str>, by_time: Option<&str>) -> SplitChoice {
        SplitChoice {
            split: split.split(',').map(str::to_owned).collect(),
            split_by: by.map(str::to_owned),
            split_by_time: by_time.map(str::to_owned),
        }
    }

    #[test]
    fn splits_are_shares_or_ranges_that_follow_each_other() {
        let shares = choice("train=80,validation=10%,test=10", Some("user"), None).division().unwrap();
        let line = format!("train 80 %, validation 10 %, test 10 % by the hash of user, seed {SEED}");
        assert_eq!(summary(shares.as_ref()), line);
        let ranges = "train=..2026-11-01,validation=2026-11-01..2026-11-15,test=2026-11-15..";
        let ranges = choice(ranges, None, Some("day")).division().unwrap();
        let line = "train ..2026-11-01, validation 2026-11-01..2026-11-15, test 2026-11-15.. by day";
        assert_eq!(summary(ranges.as_ref()), line);
    }

    #[test]
    fn mistakes_show_what_is_right() {
        let shares = [
            ("train", "`train` has no share"),
            ("train=most,test=10", "`most` is no percentage"),
            ("train=80,test=10", "total 90 %, not 100"),
            ("train=..5,test=5..", "--split-by-time COLUMN"),
        ];
        let ranges = [
            ("train=80,test=20", "`80` is no range"),
            ("train=..5,test=6..", "`train` must end where `test` begins"),
            ("train=1..5,test=5..", "the first range has no FROM"),
            ("train=..5,test=5..9", "the last no TO"),
            ("train=..,test=..", "`train` must end where"),
            ("train=..", "1 splits"),
        ];
        let shares = shares.map(|(split, why)| (choice(split, None, None), why));
        for (choice, why) in
            shares.into_iter().chain(ranges.map(|(split, why)| (choice(split, None, Some("t")), why)))
        {
            let Failure::Usage(error) = choice.division().unwrap_err() else { panic!("{choice:?}") };
            assert!(error.contains(why), "{error}");
        }
    }
}
