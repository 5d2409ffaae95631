//! Identifiers, comments and literals of C for names that users chose.

use std::collections::BTreeSet;

/// Words that are no identifiers in C or C++, and lower-case macros.
const RESERVED: [&str; 105] = [
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "char16_t",
    "char32_t",
    "char8_t",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "errno",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "i386",
    "if",
    "import",
    "inline",
    "int",
    "isfinite",
    "isinf",
    "isnan",
    "linux",
    "long",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "restrict",
    "return",
    "short",
    "signbit",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "stderr",
    "stdin",
    "stdout",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "typeof_unqual",
    "union",
    "unix",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
];

/// Unique identifiers of one scope.
#[derive(Default)]
pub(super) struct Names {
    taken: BTreeSet<String>,
}

impl Names {
    /// A scope in which these names are taken.
    pub(super) fn reserving(names: &[&str]) -> Self {
        Self { taken: names.iter().map(|&name| name.to_owned()).collect() }
    }

    /// An identifier for each of `names`. Those that are identifiers keep them.
    pub(super) fn of(&mut self, names: &[&str]) -> Vec<String> {
        let mut keep = |name: &&str| {
            let kept = identifier(name);
            (kept == **name && self.taken.insert(kept.clone())).then_some(kept)
        };
        let kept: Vec<Option<String>> = names.iter().map(&mut keep).collect();
        names
            .iter()
            .zip(kept)
            .map(|(name, kept)| kept.unwrap_or_else(|| self.unique(identifier(name))))
            .collect()
    }

    /// `name`, with a number if it is taken.
    pub(super) fn unique(&mut self, name: String) -> String {
        let mut unique = name.clone();
        let mut number = 1;
        while !self.taken.insert(unique.clone()) {
            number += 1;
            unique = format!("{name}_{number}");
        }
        unique
    }
}

/// An identifier like `name`: other characters are underscores, of which C++ permits one at a time inside a name.
pub(super) fn identifier(name: &str) -> String {
    let words: Vec<&str> = name.split(|character: char| !character.is_ascii_alphanumeric()).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let joined = words.join("_");
    // Macros have no lower-case letters.
    let is_plain = joined.starts_with(|first: char| first.is_ascii_alphabetic())
        && joined.bytes().any(|byte| byte.is_ascii_lowercase())
        && !RESERVED.contains(&joined.as_str());
    if is_plain { joined } else { format!("n_{joined}").trim_end_matches('_').to_owned() }
}

/// A string literal of these bytes.
pub(super) fn literal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 2);
    text.push('"');
    for &byte in bytes {
        match byte {
            // Two question marks may start a trigraph.
            b'"' | b'\\' | b'?' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' => text.push(char::from(byte)),
            // All three digits, so that no digit after them belongs to the byte.
            _ => text += &format!("\\{byte:03o}"),
        }
    }
    text.push('"');
    text
}

/// A name for a comment.
pub(super) fn comment(name: &str) -> String {
    literal(name.as_bytes()).replace("*/", "*\\/").replace("/*", "/\\*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_identifiers() {
        let names =
            ["a-b", "a_b", "a b", "int", "größe", "gr_e", "9", "", "日本", "EOF", "a__b", "_x", "a_b_2", "A"];
        let found = Names::default().of(&names);
        let expected = [
            "a_b_3", "a_b", "a_b_4", "n_int", "gr_e_2", "gr_e", "n_9", "n", "n_2", "n_EOF", "a_b_5", "x",
            "a_b_2", "n_A",
        ];
        assert_eq!(found, expected);
        assert!(RESERVED.is_sorted());
        assert_eq!(Names::reserving(&["id"]).of(&["id"]), ["id_2"]);
    }

    #[test]
    fn literals_and_comments_hold_any_bytes() {
        assert_eq!(literal(b"a\"\\??=\n\xff0"), r#""a\"\\\?\?=\012\3770""#);
        assert_eq!(comment("*/ /*"), r#""*\/ /\*""#);
    }
}
