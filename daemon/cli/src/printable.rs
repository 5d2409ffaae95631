//! Text that is safe to print on a terminal.
//!
//! Names, values and errors may come from data, from storage servers or from another user's job. A control character in
//! them could move the cursor, change the terminal's title or hide text. So everything that a command prints passes
//! through here, and control characters become visible escapes.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` with visible escapes for control characters other than newline and tab, and for characters that change the
/// direction of text.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |escaped, character| write!(escaped, "{}", character.escape_unicode()))
}

/// `text` as [`printable`], on one line.
pub(crate) fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// `document`, JSON, with JSON's escapes for the same characters. In JSON, they occur only within strings.
pub(crate) fn printable_json(document: &str) -> Cow<'_, str> {
    escaped(document, |escaped, character| write!(escaped, "\\u{:04x}", u32::from(character)))
}

fn escaped(text: &str, escape: impl Fn(&mut String, char) -> std::fmt::Result) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unsafe(character) {
            escape(&mut escaped, character).expect("a string accepts all text");
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

fn is_unsafe(character: char) -> bool {
    let changes_direction =
        matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (character.is_control() && !matches!(character, '\n' | '\t')) || changes_direction
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_stays() {
        let plain = "a\tcolumn of \u{e9}\u{4e2d}\n";
        assert!(matches!(printable(plain), Cow::Borrowed(same) if same == plain));
        let attack = "\x1b]0;title\x07\x1b[2J\r\u{9b}31m\x7f\u{202e}x";
        let wanted = "\\u{1b}]0;title\\u{7}\\u{1b}[2J\\u{d}\\u{9b}31m\\u{7f}\\u{202e}x";
        assert_eq!(printable(attack), wanted);
    }

    #[test]
    fn escaped_json_means_the_same() {
        let value = serde_json::json!({ "a\u{9b}": "\x1b[2J\x7f\u{202e}\n" });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let escaped = printable_json(&text);
        assert!(!escaped.contains(is_unsafe), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
