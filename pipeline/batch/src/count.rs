//! Counts of things, as messages show them.

use std::fmt;

/// A number of things, with the singular of their name: `1 row`, `2 rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64, pub &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, name) = *self;
        write!(f, "{number} {name}{}", plural(number))
    }
}

/// The ending of the regular plural for `number` things.
pub fn plural(number: u64) -> &'static str {
    if number == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::Count;

    #[test]
    fn one_is_singular() {
        let shown = [0, 1, 2].map(|number| Count(number, "row").to_string());
        assert_eq!(shown, ["0 rows", "1 row", "2 rows"]);
    }
}
