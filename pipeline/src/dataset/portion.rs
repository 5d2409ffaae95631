//! Splits of registered datasets as filters: the same ones that a job's `validation` and filters become.

use millstream_format::filter::{Comparison, Condition, Literal, RowFilter, Share, Side, Test};
use millstream_io::storage::{Portion, Rule};

/// The filter of the rows in a split. The filters of all splits of a division are disjoint; they have every row if an
/// [ordering](Rule::Order) column has a value in each.
pub fn rows_of(portion: &Portion) -> RowFilter {
    let Portion { rule, place } = portion;
    match rule {
        Rule::Hash { column, seed, percents } => {
            let until = |place: usize| percents[1..=place].iter().sum::<f64>() / 100.0;
            let (held_out, side) = match *place {
                0 => (0.0..until(percents.len() - 1), Side::Rest),
                place => (until(place - 1)..until(place), Side::HeldOut),
            };
            let share = Share { held_out, seed: *seed, column: column.clone(), side };
            RowFilter { conditions: Vec::new(), shares: vec![share] }
        }
        Rule::Order { column, bounds } => {
            let condition = |op, bound: &String| {
                let test = Test::Compare { op, value: literal(bound) };
                Condition { column: column.clone(), test }
            };
            let from = place.checked_sub(1).and_then(|before| bounds.get(before));
            let from = from.map(|bound| condition(Comparison::GreaterOrEqual, bound));
            let to = bounds.get(*place).map(|bound| condition(Comparison::Less, bound));
            RowFilter { conditions: from.into_iter().chain(to).collect(), shares: Vec::new() }
        }
    }
}

/// A bound as a literal: a number if it is one, otherwise text, such as a date.
fn literal(bound: &str) -> Literal {
    match (bound.parse(), bound.parse::<f64>()) {
        (Ok(whole), _) => Literal::Whole(whole),
        (_, Ok(number)) if number.is_finite() => Literal::Number(number),
        _ => Literal::Text(bound.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(percents: &[f64]) -> Vec<RowFilter> {
        let rule = Rule::Hash { column: Some("user".to_owned()), seed: 3, percents: percents.to_vec() };
        (0..percents.len()).map(|place| rows_of(&Portion { rule: rule.clone(), place })).collect()
    }

    #[test]
    fn shares_of_hashes_follow_each_other_and_the_first_split_has_the_rest() {
        let share = |held_out, side| RowFilter {
            conditions: Vec::new(),
            shares: vec![Share { held_out, seed: 3, column: Some("user".to_owned()), side }],
        };
        assert_eq!(hashed(&[90.0, 10.0]), [share(0.0..0.1, Side::Rest), share(0.0..0.1, Side::HeldOut)]);
        let three =
            [share(0.0..0.25, Side::Rest), share(0.0..0.15, Side::HeldOut), share(0.15..0.25, Side::HeldOut)];
        assert_eq!(hashed(&[75.0, 15.0, 10.0]), three);
    }

    #[test]
    fn neighbours_in_order_meet_at_a_bound() {
        let rule =
            Rule::Order { column: "day".to_owned(), bounds: vec!["2026-11-01".to_owned(), "7".to_owned()] };
        let conditions = |place| rows_of(&Portion { rule: rule.clone(), place }).conditions;
        let condition = |op, value| Condition { column: "day".to_owned(), test: Test::Compare { op, value } };
        let (day, seven) = (|| Literal::Text("2026-11-01".to_owned()), || Literal::Whole(7));
        assert_eq!(conditions(0), [condition(Comparison::Less, day())]);
        let middle = [condition(Comparison::GreaterOrEqual, day()), condition(Comparison::Less, seven())];
        assert_eq!(conditions(1), middle);
        assert_eq!(conditions(2), [condition(Comparison::GreaterOrEqual, seven())]);
    }
}
