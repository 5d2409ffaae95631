//! Tokenizers of text, as Hugging Face's library `tokenizers` saves them (`tokenizer.json`).
//!
//! Neither files nor texts are trusted. The library does not promise that none makes it panic, so its panics are caught.
//! A file is refused if its tokens would be random, or if it would make texts much longer. A long text needs a hundred times
//! its size, so only one is tokenized at a time, and there is a maximum.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::Value;
use tokenizers::Tokenizer as Library;

use crate::Error;
use crate::fingerprint::fingerprint64;

/// The tokenizers of a feed, by the path that its columns name.
pub type Tokenizers = BTreeMap<String, Arc<Tokenizer>>;

/// The maximum bytes of a text. Beyond a million characters, the library stops to apply patterns with look-ahead without
/// saying so.
pub(crate) const MAX_TEXT_BYTES: usize = 768 << 10;

/// The bytes of a text from which on only one is tokenized at a time.
const LARGE_TEXT_BYTES: usize = 64 << 10;

/// The memory that tokenizing needs per byte of text, measured.
const BYTES_PER_TEXT_BYTE: u64 = 128;

/// The memory of a tokenizer per byte of its file. Of a BPE model with 150,000 tokens in 6.3 MB, it is 19, of which reading
/// the file needs a part that is free again afterwards.
const HELD_PER_BYTE: u64 = 16;

/// How many times as long a normalizer may make a text. That of T5 could reach 132.
const MOST_GROWTH: u64 = 256;

/// A tokenizer.
pub struct Tokenizer {
    library: Library,
    fingerprint: u64,
    file_bytes: u64,
    /// Held while a large text is tokenized.
    large: Mutex<()>,
}

impl Tokenizer {
    /// Reads the contents of the file `path`. Its truncation and padding do not apply: documents are packed instead.
    ///
    /// # Errors
    /// They describe no tokenizer, or one that makes random tokens or very long texts.
    pub fn parse(bytes: &[u8], path: &str) -> Result<Self, Error> {
        let invalid = |error: &dyn fmt::Display| Error::Invalid(format!("{path}: no tokenizer: {error}"));
        let file: Value = serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
        check(&file).map_err(|message| Error::Invalid(format!("{path}: {message}")))?;
        drop(file);
        let read = || -> tokenizers::Result<Library> {
            let mut library = Library::from_bytes(bytes)?;
            library.with_padding(None).with_truncation(None)?;
            Ok(library)
        };
        let read = catch_unwind(read).map_err(|_| invalid(&"the library `tokenizers` cannot read it"))?;
        let library = read.map_err(|error| invalid(&error))?;
        let fingerprint = fingerprint64(bytes);
        Ok(Self { library, fingerprint, file_bytes: bytes.len() as u64, large: Mutex::default() })
    }

    /// Identifies its contents.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The memory that it needs as long as it exists, and for one large text.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.file_bytes * HELD_PER_BYTE + MAX_TEXT_BYTES as u64 * BYTES_PER_TEXT_BYTE
    }

    /// The memory that each thread needs for a text that is not large.
    pub(crate) fn thread_bytes() -> u64 {
        LARGE_TEXT_BYTES as u64 * BYTES_PER_TEXT_BYTE
    }

    /// Appends the tokens of `text`, without special tokens around them. Returns whether the text has tokens: models
    /// without a token for what they do not know fail on some texts.
    pub(crate) fn encode(&self, text: &str, tokens: &mut Vec<u32>) -> bool {
        let _large = (text.len() > LARGE_TEXT_BYTES).then(|| self.large.lock());
        // It computes no offsets, unlike `encode`.
        let encode = || self.library.encode_fast(text, false);
        // It changes nothing but caches, which are locked.
        match catch_unwind(AssertUnwindSafe(encode)) {
            Ok(Ok(encoding)) => {
                tokens.extend_from_slice(encoding.get_ids());
                true
            }
            Ok(Err(_)) | Err(_) => false,
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// Checks what the library accepts but a feed cannot use.
fn check(file: &Value) -> Result<(), String> {
    if file["model"]["dropout"].as_f64().is_some_and(|share| share > 0.0) {
        return Err(
            "`dropout` of its model makes tokens random, so no feed could resume; set it to null".to_owned()
        );
    }
    match growth(&file["normalizer"])? {
        growth if growth > MOST_GROWTH => {
            Err(format!("its normalizer may make texts {growth} times as long; the maximum is {MOST_GROWTH}"))
        }
        _ => Ok(()),
    }
}

/// How many times as long a normalizer may make a text.
fn growth(normalizer: &Value) -> Result<u64, String> {
    let bytes = |value: &Value| value.as_str().map_or(0, |text| text.len() as u64);
    Ok(match normalizer["type"].as_str() {
        Some("Sequence") => {
            let steps = normalizer["normalizers"].as_array().into_iter().flatten();
            steps
                .map(growth)
                .try_fold(1_u64, |product, step| Ok::<_, String>(product.saturating_mul(step?)))?
        }
        Some("Replace") => {
            let content = bytes(&normalizer["content"]);
            match bytes(&normalizer["pattern"]["String"]) {
                // A regular expression may match nothing, before each character.
                0 => content + 1,
                pattern => content.div_ceil(pattern).max(1),
            }
        }
        Some("Prepend") => bytes(&normalizer["prepend"]) + 1,
        Some("Precompiled") => longest_replacement(&normalizer["precompiled_charsmap"])?,
        _ => 1,
    })
}

/// The longest text that a character map of SentencePiece puts in place of a character: the map is a trie, preceded by its
/// size in bytes, and the texts, each ended by a zero.
fn longest_replacement(map: &Value) -> Result<u64, String> {
    let Some(map) = map.as_str() else { return Ok(1) };
    let map = STANDARD.decode(map).map_err(|error| format!("`precompiled_charsmap`: {error}"))?;
    let texts =
        map.split_first_chunk().and_then(|(size, rest)| rest.get(u32::from_le_bytes(*size) as usize..));
    let texts = texts.ok_or_else(|| "`precompiled_charsmap` is shorter than it says".to_owned())?;
    let longest = texts.split(|&byte| byte == 0).map(<[u8]>::len).max();
    Ok(longest.map_or(1, |longest| longest.max(1) as u64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn file(normalizer: &str, model: &str) -> String {
        format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{normalizer},
                "pre_tokenizer":{{"type":"WhitespaceSplit"}},"post_processor":null,"decoder":null,"model":{model}}}"#
        )
    }

    const WORDS: &str = r#"{"type":"WordLevel","vocab":{"?":0,"a":1},"unk_token":"?"}"#;

    fn parse(text: &str) -> Result<Tokenizer, String> {
        Tokenizer::parse(text.as_bytes(), "words.json").map_err(|error| error.to_string())
    }

    #[test]
    fn random_tokens_are_refused() {
        let model =
            |dropout| format!(r#"{{"type":"BPE","dropout":{dropout},"vocab":{{"a":0}},"merges":[]}}"#);
        assert!(parse(&file("null", &model("null"))).is_ok());
        let error = parse(&file("null", &model("0.5"))).unwrap_err();
        assert!(error.starts_with("words.json: `dropout`"), "{error}");
    }

    #[test]
    fn normalizers_that_multiply_texts_are_refused() {
        let replace = r#"{"type":"Replace","pattern":{"String":"a"},"content":"aa"}"#;
        let sequence = |steps: usize| {
            format!(r#"{{"type":"Sequence","normalizers":[{}]}}"#, vec![replace; steps].join(","))
        };
        assert!(parse(&file(&sequence(8), WORDS)).is_ok());
        assert!(parse(&file(&sequence(9), WORDS)).unwrap_err().contains("512 times as long"));
        for (normalizer, expected) in [
            (r#"{"type":"Prepend","prepend":"abc"}"#, Ok(4)),
            (r#"{"type":"Replace","pattern":{"Regex":"x*"},"content":"abc"}"#, Ok(4)),
            (r#"{"type":"Replace","pattern":{"String":"abc"},"content":""}"#, Ok(1)),
            (r#"{"type":"NFKC"}"#, Ok(1)),
            // A trie of four bytes and the texts "abc" and "de"; a trie of 2^30 bytes.
            (r#"{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAABhYmMAZGUA"}"#, Ok(3)),
            (r#"{"type":"Precompiled","precompiled_charsmap":"AAAAQAAA"}"#, Err(())),
        ] {
            let found = growth(&serde_json::from_str(normalizer).unwrap()).map_err(drop);
            assert_eq!(found, expected, "{normalizer}");
        }
    }

    #[test]
    fn panics_of_the_library_are_errors() {
        // A prefix that is longer than the second part of a merge.
        let model = r#"{"type":"BPE","continuing_subword_prefix":"@@@@","vocab":{"a":0,"b":1,"ab":2},
            "merges":[["a","b"]]}"#;
        let error = parse(&file("null", model)).unwrap_err();
        assert!(error.starts_with("words.json: no tokenizer"), "{error}");
        let text = file("null", WORDS)
            .replace(r#"{"type":"WhitespaceSplit"}"#, r#"{"type":"FixedLength","length":0}"#);
        let mut tokens = vec![7];
        assert!(!parse(&text).unwrap().encode("a a", &mut tokens));
        assert_eq!(tokens, [7]);
    }

    #[test]
    fn long_runs_of_white_space_are_read_whole() {
        let split =
            r#"{"type":"Split","pattern":{"Regex":"\\s+(?!\\S)|\\S"},"behavior":"Removed","invert":true}"#;
        let text = file("null", WORDS).replace(r#"{"type":"WhitespaceSplit"}"#, split);
        let tokenizer = parse(&text).unwrap();
        let mut tokens = Vec::new();
        let text = format!("a{}a a a", " ".repeat(MAX_TEXT_BYTES - 6));
        assert_eq!(text.len(), MAX_TEXT_BYTES);
        assert!(tokenizer.encode(&text, &mut tokens));
        assert_eq!(tokens.iter().filter(|&&token| token == 1).count(), 4);
    }
}
