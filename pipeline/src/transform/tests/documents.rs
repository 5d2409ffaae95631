//! Documents of tokens: lists, bytes and texts.

use arrow_array::builder::BinaryBuilder;
use arrow_array::types::Int64Type;
use millstream_batch::Dtype;

use super::*;
use crate::bad_records::BadRecords;
use crate::chunk::ChunkColumn;
use crate::order::Packing;
use crate::sequences::{Packed, SequenceSpec, StoredTokens, TokenSpec};
use crate::spec::ColumnSpec;
use crate::tokenizer::{Tokenizer, Tokenizers};

/// Words of a vocabulary, in lower case, between white space; others are token 0.
const WORDS: &str = r#"{"version":"1.0","normalizer":{"type":"Lowercase"},"pre_tokenizer":{"type":"Whitespace"},
    "truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
    "padding":{"strategy":{"Fixed":8},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,
        "pad_token":"[UNK]"},
    "post_processor":null,"decoder":null,"added_tokens":[],
    "model":{"type":"WordLevel","vocab":{"[UNK]":0,"a":1,"rose":2,"is":3},"unk_token":"[UNK]"}}"#;

const SPEC: SequenceSpec = SequenceSpec { length: 16, how: Packing::BestFit };

fn column(name: &str, dtype: Dtype, tokens: TokenSpec) -> ColumnSpec {
    ColumnSpec {
        name: name.into(),
        column: name.into(),
        kind: SPEC.column_kind(dtype),
        missing: None,
        image: None,
        tokens: Some(tokens),
    }
}

fn resolve(columns: &[ColumnSpec]) -> Result<Transform, Error> {
    resolve_missing(columns, &[])
}

fn resolve_missing(columns: &[ColumnSpec], missing: &[String]) -> Result<Transform, Error> {
    let words = Arc::new(Tokenizer::parse(WORDS.as_bytes(), "words.json").unwrap());
    let tokenizers = Tokenizers::from([("words.json".to_owned(), words)]);
    Transform::of_columns(columns, Some(Packed { spec: &SPEC, tokenizers: &tokenizers }), missing)
}

/// The documents of each column.
fn documents(transformed: &Transformed) -> Vec<Vec<Vec<i32>>> {
    let of_column = |column: &ChunkColumn| {
        let ints = |bytes: &[u8]| {
            bytes.chunks_exact(4).map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap())).collect()
        };
        (0..transformed.chunk.rows()).map(|row| ints(column.row(row))).collect()
    };
    transformed.chunk.columns.iter().map(of_column).collect()
}

fn apply(columns: &[ColumnSpec], data: &[(&str, ArrayRef)]) -> (Transformed, Option<String>) {
    let bad = BadRecords::new(OnBadRecord::Skip { limit: 100 });
    let found = resolve(columns).unwrap().apply(&raw(data), &bad).unwrap();
    (found, bad.take_last().map(|error| error.to_string()))
}

fn lists(rows: &[&[i64]]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.iter().copied().map(Some).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
}

fn stored(rows: &[&[u8]]) -> ArrayRef {
    let mut bytes = BinaryBuilder::new();
    rows.iter().for_each(|row| bytes.append_value(row));
    Arc::new(bytes.finish())
}

#[test]
fn values_are_added_around_documents() {
    let both = TokenSpec { bos: Some(8.0), eos: Some(9.0), ..TokenSpec::default() };
    let (found, bad) = apply(&[column("t", Dtype::Int32, both)], &[("t", lists(&[&[1, 2], &[], &[3]]))]);
    assert_eq!(documents(&found), [[vec![8, 1, 2, 9], vec![8, 9], vec![8, 3, 9]]]);
    assert_eq!((bad, found.truncated_rows), (None, 0));
    let cut = TokenSpec { eos: Some(9.0), maximum: Some(2), ..TokenSpec::default() };
    let (found, _) = apply(&[column("t", Dtype::Int32, cut)], &[("t", lists(&[&[1, 2, 3], &[4]]))]);
    assert_eq!((documents(&found), found.truncated_rows), (vec![vec![vec![1, 2, 9], vec![4, 9]]], 1));
}

#[test]
fn columns_of_a_document_have_as_many_values() {
    let columns = ["t", "w"].map(|name| column(name, Dtype::Int32, TokenSpec::default()));
    let data = [("t", lists(&[&[1, 2], &[3], &[]])), ("w", lists(&[&[5, 6], &[7, 8], &[]]))];
    let (found, bad) = apply(&columns, &data);
    assert_eq!(documents(&found), [[vec![1, 2], vec![]], [vec![5, 6], vec![]]]);
    let bad = bad.unwrap();
    assert!(bad.contains("record 101"), "{bad}");
    assert!(bad.contains("as many values as column `t` has (1), found 2"), "{bad}");
    // Also if what is left of them is as long.
    let cut = TokenSpec { maximum: Some(1), eos: Some(9.0), ..TokenSpec::default() };
    let columns = ["t", "w"].map(|name| column(name, Dtype::Int32, cut.clone()));
    let (found, bad) = apply(&columns, &data);
    assert_eq!(documents(&found), [[vec![1, 9], vec![9]], [vec![5, 9], vec![9]]]);
    assert!(bad.unwrap().contains("has (1), found 2"));
}

#[test]
fn tokens_are_read_from_bytes() {
    let of = |stored| TokenSpec { stored: Some(stored), eos: Some(-1.0), ..TokenSpec::default() };
    let column16 = column("t", Dtype::Int32, of(StoredTokens::Uint16));
    let (found, bad) = apply(&[column16], &[("t", stored(&[&[1, 0, 255, 255], &[], &[7], &[2, 1]]))]);
    assert_eq!(documents(&found), [[vec![1, 65_535, -1], vec![-1], vec![258, -1]]]);
    assert!(bad.unwrap().contains("whole tokens of 2 bytes, found 1 bytes"));
    let column32 = column("t", Dtype::Int32, of(StoredTokens::Uint32));
    let (found, bad) =
        apply(&[column32], &[("t", stored(&[&[1, 0, 1, 0], &[1, 0, 0, 0, 0, 0, 0, 128], &[]]))]);
    assert_eq!(documents(&found), [[vec![65_537, -1], vec![-1]]]);
    let bad = bad.unwrap();
    assert!(bad.contains("record 101") && bad.contains("found 2147483648"), "{bad}");
}

#[test]
fn texts_are_tokenized_whole() {
    let words = TokenSpec { tokenizer: Some("words.json".into()), ..TokenSpec::default() };
    let texts =
        |rows: &[Option<&str>]| -> ArrayRef { Arc::new(rows.iter().copied().collect::<StringArray>()) };
    let text = texts(&[Some("A rose is a rose"), Some(""), None, Some("tulip is")]);
    let (found, bad) = apply(&[column("t", Dtype::Int32, words.clone())], &[("t", text)]);
    // Neither the truncation nor the padding of the file applies.
    assert_eq!(documents(&found), [[vec![1, 2, 3, 1, 2], vec![], vec![], vec![0, 3]]]);
    assert_eq!(bad, None);
    let (found, bad) = apply(&[column("t", Dtype::Int32, words)], &[("t", stored(&[b"a", b"\xff", b"is"]))]);
    assert_eq!(documents(&found), [[vec![1], vec![3]]]);
    assert!(bad.unwrap().contains("expected text in UTF-8"));
    let long = "a ".repeat(crate::tokenizer::MAX_TEXT_BYTES / 2 + 1);
    let spec =
        column("t", Dtype::Int32, TokenSpec { tokenizer: Some("words.json".into()), ..TokenSpec::default() });
    let (found, bad) = apply(&[spec], &[("t", stored(&[long.as_bytes(), b"a"]))]);
    assert_eq!(documents(&found), [[vec![1]]]);
    assert!(bad.unwrap().contains("a text of at most 768.0 KiB"));
    // `missing` of the feed is about texts, not about their tokens.
    let spec =
        column("t", Dtype::Int32, TokenSpec { tokenizer: Some("words.json".into()), ..TokenSpec::default() });
    let texts = texts(&[Some("a rose"), Some("2")]);
    let found = resolve_missing(&[spec], &["2".to_owned()]).unwrap().apply(&raw(&[("t", texts)]), &strict());
    assert_eq!(documents(&found.unwrap()), [[vec![1, 2], vec![]]]);
    // A model without a token for unknown words.
    let strict = WORDS.replace(r#""[UNK]":0,"#, "");
    let tokenizer = Tokenizer::parse(strict.as_bytes(), "words.json").unwrap();
    let mut tokens = Vec::new();
    assert!(!tokenizer.encode("a tulip", &mut tokens));
    assert!(tokenizer.encode("a rose", &mut tokens) && tokens.ends_with(&[1, 2]));
}

#[test]
fn the_schema_describes_sequences() {
    let transform = resolve(&[column("t", Dtype::Uint16, TokenSpec::default())]).unwrap();
    let schema = transform.schema(3, 9);
    let names: Vec<&str> = schema.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["t", "segment_ids", "positions", "cu_seqlens"]);
    let kinds: Vec<_> =
        schema.columns.iter().map(|column| (column.kind.dtype(), column.kind.row_values())).collect();
    let int32 = Dtype::Int32;
    assert_eq!(kinds, [(Dtype::Uint16, Some(16)), (int32, Some(16)), (int32, Some(16)), (int32, Some(17))]);
    assert!(!schema.columns[2].kind.has_offsets() && schema.columns[3].kind.has_offsets());
}

#[test]
fn invalid_columns_of_tokens_are_refused_by_name() {
    let unread = TokenSpec { tokenizer: Some("other.json".into()), ..TokenSpec::default() };
    let plain = ColumnSpec { tokens: None, ..column("t", Dtype::Int32, TokenSpec::default()) };
    let cases = [
        (column("t", Dtype::Uint8, TokenSpec { eos: Some(256.0), ..TokenSpec::default() }), "256 is not"),
        (column("t", Dtype::Int32, TokenSpec { pad: 0.5, ..TokenSpec::default() }), "0.5 is not"),
        (column("t", Dtype::Int32, unread), "other.json"),
        (plain, "not documents"),
    ];
    for (spec, why) in cases {
        let error = resolve(&[spec]).unwrap_err().to_string();
        assert!(error.starts_with("column `t`: ") && error.contains(why), "{error}");
    }
    let unpacked = Transform::of_columns(&[column("t", Dtype::Int32, TokenSpec::default())], None, &[]);
    assert!(unpacked.unwrap_err().to_string().contains("not packed"));
    for (text, why) in [("{", "no tokenizer"), (r#"{"model":{"type":"Other"}}"#, "words.json: no tokenizer")]
    {
        let error = Tokenizer::parse(text.as_bytes(), "words.json").unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
