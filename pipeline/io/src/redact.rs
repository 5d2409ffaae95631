//! Removes secrets from text that contains addresses, before the text is logged, stored or displayed.
//!
//! Two kinds of secrets occur in addresses: a user name and password before the host, and the value of a query
//! parameter that grants access (a signature, a token, a key). Both are replaced by `***`. The text may be an address,
//! or a message that contains some. Where it is ambiguous, too much is removed rather than too little.

use std::borrow::Cow;

const MASK: &str = "***";

/// No parameter that holds a secret has a longer name.
const LONGEST_NAME: usize = 64;

/// Bytes after `://` in which the end of a user name and password is searched for, so that the time is proportional to the
/// text. Servers accept no longer addresses.
const LONGEST_ADDRESS: usize = 8192;

/// Names of query parameters that hold a secret, in lower case.
const SECRET_NAMES: [&str; 9] = ["sig", "key", "sas", "code", "pwd", "auth", "jwt", "awsaccesskeyid", "pass"];

/// A parameter whose name contains one of these, in lower case, holds a secret.
const SECRET_PARTS: [&str; 7] =
    ["signature", "token", "password", "passwd", "secret", "credential", "api_key"];

/// Schemes in whose addresses a name before `@` is a container, not a user.
const CONTAINER_SCHEMES: [&str; 5] = ["abfs", "abfss", "az", "azure", "adl"];

/// `text` without the user names, passwords, signatures and tokens in its addresses.
///
/// ```
/// use millstream_io::redact;
///
/// assert_eq!(redact("https://me:pw@host/a"), "https://***@host/a");
/// assert_eq!(redact("gs://b/a?X-Goog-Signature=1f&part=2"), "gs://b/a?X-Goog-Signature=***&part=2");
/// assert_eq!(redact("gs://bucket/part-?.gz"), "gs://bucket/part-?.gz");
/// ```
pub fn redact(text: &str) -> Cow<'_, str> {
    // Nearly all texts end here.
    if !text.contains("://") && !text.contains('=') {
        return Cow::Borrowed(text);
    }
    redact_parameters(redact_users(Cow::Borrowed(text)))
}

/// Removes what stands before the `@` of each authority.
fn redact_users(text: Cow<'_, str>) -> Cow<'_, str> {
    let mut redacted = String::new();
    let mut copied = 0;
    let mut searched = 0;
    // The end of the word at `searched`: every word is read once.
    let mut word_end = 0;
    while let Some(found) = text[searched..].find("://") {
        let authority = searched + found + "://".len();
        searched = authority;
        if word_end < authority {
            word_end = text[authority..].find(ends_word).map_or(text.len(), |end| authority + end);
        }
        let longest = text.floor_char_boundary(authority + LONGEST_ADDRESS);
        let word = &text[authority..word_end.min(longest)];
        if let Some(at) = user_end(&text[..authority - "://".len()], word) {
            redacted.push_str(&text[copied..authority]);
            redacted.push_str(MASK);
            copied = authority + at;
            searched = copied;
        }
    }
    if copied == 0 {
        return text;
    }
    redacted.push_str(&text[copied..]);
    Cow::Owned(redacted)
}

/// The position of the `@` that ends the user name and password at the start of `word`, if it starts with them.
fn user_end(before: &str, word: &str) -> Option<usize> {
    let authority = &word[..word.find(['/', '?', '#']).unwrap_or(word.len())];
    if let Some(at) = authority.rfind('@') {
        let start = before.rfind(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
        let scheme =
            &before[start.map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8))..];
        let is_container = CONTAINER_SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known));
        return (!is_container || authority[..at].contains(':')).then_some(at);
    }
    // A password may contain `/`, `?` or `#`, although it should not: then what follows the colon is no port.
    let (host, port) = authority.rsplit_once(':')?;
    let is_port = port.is_empty() || port.bytes().all(|byte| byte.is_ascii_digit()) || host.starts_with('[');
    if is_port { None } else { word.rfind('@') }
}

/// Removes the values of parameters that hold a secret.
fn redact_parameters(text: Cow<'_, str>) -> Cow<'_, str> {
    let mut redacted = String::new();
    let mut copied = 0;
    for (at, _) in text.match_indices('=') {
        if at < copied {
            continue;
        }
        // No further than the longest name, so that the time is proportional to the text.
        let before = &text[text.floor_char_boundary(at.saturating_sub(LONGEST_NAME + 1)).max(copied)..at];
        let Some(start) = before.rfind(['?', '&', ';']) else { continue };
        if !is_secret(&before[start + 1..]) {
            continue;
        }
        let rest = &text[at + 1..];
        let end = rest.find(|c: char| c == '&' || c == ';' || ends_word(c)).unwrap_or(rest.len());
        redacted.push_str(&text[copied..=at]);
        redacted.push_str(MASK);
        copied = at + 1 + end;
    }
    if copied == 0 {
        return text;
    }
    redacted.push_str(&text[copied..]);
    Cow::Owned(redacted)
}

fn is_secret(name: &str) -> bool {
    if name.len() > LONGEST_NAME || name.contains(char::is_whitespace) {
        return false;
    }
    let name = name.to_ascii_lowercase().replace("%2d", "-").replace("%5f", "_").replace("amp;", "");
    SECRET_NAMES.contains(&name.as_str()) || SECRET_PARTS.iter().any(|part| name.contains(part))
}

/// Whether an address in a message ends before `c`.
fn ends_word(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | '`' | '<' | '>')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn users_and_passwords_are_removed() {
        for (text, redacted) in [
            ("https://me:pw@host:8080/a", "https://***@host:8080/a"),
            ("https://token@host/a", "https://***@host/a"),
            ("ftp://me:p@w@host/x", "ftp://***@host/x"),
            ("http://me:p/w@host/x", "http://***@host/x"),
            ("http://me:p?w#@host/x", "http://***@host/x"),
            ("abfss://c:pw@account/x", "abfss://***@account/x"),
            ("a `https://u:p@h/` and s3://u:p@b: no", "a `https://***@h/` and s3://***@b: no"),
            ("é://u:p@h/", "é://***@h/"),
        ] {
            assert_eq!(redact(text), redacted);
        }
    }

    #[test]
    fn signatures_and_tokens_are_removed() {
        for (text, redacted) in [
            ("s3://b/a?X-Amz-Signature=1&X-Amz-Expires=3", "s3://b/a?X-Amz-Signature=***&X-Amz-Expires=3"),
            ("az://c/a?sv=1&sig=a%2Bb&se=2", "az://c/a?sv=1&sig=***&se=2"),
            ("https://h/a?x-amz-security-token=abc", "https://h/a?x-amz-security-token=***"),
            ("X?Signature=a==&Key=b", "X?Signature=***&Key=***"),
            ("<a href=\"https://h/?a=1&amp;sig=abc\">", "<a href=\"https://h/?a=1&amp;sig=***\">"),
            (
                "gs://b/a?X%2DGoog%2DSignature=ab: no such file",
                "gs://b/a?X%2DGoog%2DSignature=*** no such file",
            ),
        ] {
            assert_eq!(redact(text), redacted);
        }
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in [
            "data/part-?.csv: no file matches",
            "http://host:8080/a@b",
            "http://[::1]:80/a@b",
            "abfss://container@account.dfs.core.windows.net/x?=1",
            "gs://b/year=2026/a?b=c&sigma=1",
            "a = b; c = d://",
        ] {
            assert!(matches!(redact(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn the_time_is_proportional_to_the_text() {
        // Took minutes when each sign was followed back to the start.
        for sign in ["=", "a=b&", "://", "://a:b"] {
            let text = sign.repeat((1 << 20) / sign.len());
            assert!(redact(&text).len() <= 2 * text.len());
        }
    }

    proptest! {
        #[test]
        fn no_text_keeps_its_secret(before in "\\PC{0,8}", after in "\\PC{0,8}") {
            for secret in ["://u:sesame@h/", "://sesame@h", "?sig=sesame", "&X-Goog-Signature=sesame&"] {
                let text = format!("{before} https{secret} {after}");
                prop_assert!(!redact(&text).contains("sesame"), "{text}");
            }
        }

        #[test]
        fn any_text_can_be_redacted_twice(text in "[a@:/?&=;#\\[\\]é sig]{0,40}") {
            let once = redact(&text).into_owned();
            prop_assert_eq!(redact(&once), once.as_str());
        }
    }
}
