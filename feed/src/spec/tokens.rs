//! Columns of tokens, and how their documents are packed into sequences.
//!
//! ```toml
//! [pack]
//! length = 2048
//! how = "best_fit"
//!
//! [columns]
//! tokens = { kind = "tokens", column = "input_ids", eos = 2 }
//! loss_mask = { kind = "tokens", dtype = "uint8", eos = 1 }
//! ```

use millstream_batch::{ColumnKind, Dtype};
use millstream_document::section::Section;
use millstream_document::tree::Value;
use millstream_pipeline::order::Packing;
use millstream_pipeline::sequences::{DESCRIBING, MAX_LENGTH, SequenceSpec, StoredTokens, TokenSpec};
use millstream_pipeline::spec::ColumnSpec;

use super::read_number;

const PACKINGS: [(&str, Packing); 2] =
    [("best_fit", Packing::BestFit), ("concatenate", Packing::Concatenate)];

const STORED: [(&str, StoredTokens); 2] =
    [("uint16", StoredTokens::Uint16), ("uint32", StoredTokens::Uint32)];

/// Reads `[pack]`.
pub(super) fn read_pack(mut section: Section<'_>) -> Option<SequenceSpec> {
    let length = section.required("length", "the tokens of a sequence, such as 2048");
    let length = length.and_then(|node| section.as_whole(node, 1..=MAX_LENGTH.into()));
    let how = section.choice("how", &PACKINGS).unwrap_or(Packing::BestFit);
    section.finish();
    Some(SequenceSpec { length: u32::try_from(length?).ok()?, how })
}

/// Reads the keys of a column of tokens, without those that all columns have. Its shape is that of `sequences`.
pub(super) fn read(
    column: &mut Section<'_>,
    sequences: Option<&SequenceSpec>,
) -> (Option<ColumnKind>, TokenSpec) {
    let dtype = column.choice("dtype", &Dtype::ALL.map(|dtype| (dtype.name(), dtype)));
    let tokens = TokenSpec {
        bos: read_number(column, "bos"),
        eos: read_number(column, "eos"),
        pad: read_number(column, "pad").unwrap_or(0.0),
        maximum: column.whole_u32("maximum", 1..=u32::MAX),
        average: column.whole_u32("average", 1..=u32::MAX),
        stored: column.choice("stored", &STORED),
        tokenizer: column.text("tokenizer").map(|text| text.text.to_owned()),
    };
    if tokens.tokenizer.as_ref().is_some_and(String::is_empty) {
        column.error("tokenizer", "expected the path of a file such as tokenizer.json");
    }
    if column.has("missing") && (tokens.stored.is_some() || tokens.tokenizer.is_some()) {
        column.error(
            "missing",
            "a document that is stored as bytes or text has no absent tokens; remove `missing`",
        );
    }
    if tokens.stored.is_some() && tokens.tokenizer.is_some() {
        column.error("tokenizer", "`tokenizer` is for text, and `stored` for tokens; remove one");
    }
    if sequences.is_none() {
        column.error("kind", "documents of tokens are packed: add a section [pack] with `length`");
    }
    (sequences.map(|spec| spec.column_kind(dtype.unwrap_or(Dtype::Int32))), tokens)
}

/// Checks what all columns of a feed with `[pack]` have in common.
pub(super) fn check(columns: &[ColumnSpec], section: &Section<'_>) {
    for ColumnSpec { name, tokens, .. } in columns {
        if tokens.is_none() {
            let message = "with [pack], rows are documents, so each column has `kind` = \"tokens\"";
            section.error(name, message);
        } else if DESCRIBING.contains(&name.as_str()) {
            section.error(
                name,
                "a batch of packed documents has a column of this name already; rename this one",
            );
        }
    }
    let mut of_tokens = columns.iter().filter_map(|column| Some((&column.name, column.tokens.as_ref()?)));
    let Some((first, tokens)) = of_tokens.next() else { return };
    let shape = |tokens: &TokenSpec| (tokens.bos.is_some(), tokens.eos.is_some(), tokens.maximum);
    for (name, _) in of_tokens.filter(|(_, other)| shape(other) != shape(tokens)) {
        let message = format!(
            "a document has as many values in each column: set `bos` and `eos` in all of them or in none, and the same \
             `maximum` as in `{first}`"
        );
        section.error(name, message);
    }
}

/// Checks that there is a shuffle pool, within whose windows documents are packed.
pub(super) fn check_pool(data: &mut Section<'_>) {
    if data.node("shuffle_rows").is_some_and(|node| matches!(node.value, Value::Whole(0))) {
        data.error(
            "shuffle_rows",
            "documents are packed within the windows of the shuffle pool, of `shuffle_rows` / `lanes` documents; use at \
             least some thousands",
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;
    use crate::spec::FeedSpec;

    fn parse(data: &str, pack: &str, columns: &str) -> Result<FeedSpec, String> {
        let text =
            format!("[data]\ntrain = ['x.parquet']\nbatch_size = 4\n{data}\n{pack}\n[columns]\n{columns}\n");
        let spec = FeedSpec::parse(&text, Path::new("feed.toml")).map_err(|error| error.to_string())?;
        let again = FeedSpec::parse(&spec.text, Path::new("feed.toml")).unwrap();
        assert_eq!((&again.columns, &again.sequences), (&spec.columns, &spec.sequences), "{}", spec.text);
        Ok(spec)
    }

    const POOL: &str = "shuffle_rows = 4096";

    #[test]
    fn keys_have_defaults() {
        let spec = parse(POOL, "[pack]\nlength = 8", "t = { kind = 'tokens' }").unwrap();
        assert_eq!(spec.sequences, Some(SequenceSpec { length: 8, how: Packing::BestFit }));
        let [column] = &spec.columns[..] else { panic!("{:?}", spec.columns) };
        assert_eq!(column.column, "t");
        assert_eq!(column.kind, ColumnKind::Fixed { dtype: Dtype::Int32, shape: vec![8] });
        assert_eq!(column.tokens, Some(TokenSpec::default()));
    }

    #[test]
    fn all_keys_are_read() {
        let columns = "t = { kind = 'tokens', column = 'ids', dtype = 'uint16', bos = 1, eos = 2, pad = 3, maximum = 100, \
                       average = 50, stored = 'uint32' }\n\
                       w = { kind = 'tokens', dtype = 'float32', bos = 0, eos = 0.5, pad = 'inf', maximum = 100, missing = 1 }";
        let spec = parse(POOL, "[pack]\nlength = 2048\nhow = 'concatenate'", columns).unwrap();
        assert_eq!(spec.sequences, Some(SequenceSpec { length: 2048, how: Packing::Concatenate }));
        let expected = TokenSpec {
            bos: Some(1.0),
            eos: Some(2.0),
            pad: 3.0,
            maximum: Some(100),
            average: Some(50),
            stored: Some(StoredTokens::Uint32),
            tokenizer: None,
        };
        assert_eq!(spec.columns[0].tokens, Some(expected));
        assert_eq!(spec.columns[1].tokens.as_ref().unwrap().pad, f64::INFINITY);
        assert_eq!(
            (spec.columns[1].missing, spec.columns[1].tokens.as_ref().unwrap().eos),
            (Some(1.0), Some(0.5))
        );
    }

    #[test]
    fn mistakes_are_errors() {
        let pack = "[pack]\nlength = 8";
        for (data, pack, columns, message) in [
            (POOL, "", "t = { kind = 'tokens' }", "add a section [pack]"),
            (POOL, "[pack]", "t = { kind = 'tokens' }", "length"),
            (POOL, "[pack]\nlength = 0", "t = { kind = 'tokens' }", "from 1 to 4194304, found 0"),
            (POOL, "[pack]\nlength = 8\nhow = 'first_fit'", "t = { kind = 'tokens' }", "\"best_fit\""),
            (
                POOL,
                pack,
                "t = { kind = 'tokens' }\nl = { dtype = 'int32' }",
                "each column has `kind` = \"tokens\"",
            ),
            (POOL, pack, "positions = { kind = 'tokens' }", "rename this one"),
            (
                POOL,
                pack,
                "t = { kind = 'tokens', eos = 2 }\nw = { kind = 'tokens' }",
                "in all of them or in none",
            ),
            (
                POOL,
                pack,
                "t = { kind = 'tokens', maximum = 2 }\nw = { kind = 'tokens' }",
                "the same `maximum`",
            ),
            (POOL, pack, "t = { kind = 'tokens', stored = 'uint16', tokenizer = 'x.json' }", "remove one"),
            (POOL, pack, "t = { kind = 'tokens', tokenizer = '' }", "the path of a file"),
            (POOL, pack, "t = { kind = 'tokens', stored = 'uint16', missing = 1 }", "remove `missing`"),
            (POOL, pack, "t = { kind = 'tokens', stored = 'uint8' }", "\"uint16\""),
            (POOL, pack, "t = { kind = 'tokens', eos = 'x' }", "expected a number"),
            ("shuffle_rows = 0", pack, "t = { kind = 'tokens' }", "within the windows of the shuffle pool"),
            (POOL, "[pack]\nlength = 4194304", "t = { kind = 'tokens' }\n", ""),
        ] {
            let result = parse(data, pack, columns);
            if message.is_empty() {
                result.unwrap();
                continue;
            }
            let error = result.unwrap_err();
            assert!(error.contains(message), "{pack} {columns}: {error}");
        }
        let many = "[data]\ntrain = ['x.parquet']\nbatch_size = 1000\n[pack]\nlength = 4194304\n[columns]\n\
                    t = { kind = 'tokens' }\n";
        let error = FeedSpec::parse(many, Path::new("feed.toml")).unwrap_err().to_string();
        assert!(error.contains("2^31"), "{error}");
    }
}
