//! Documents of tokens: any file is a tokenizer or an error, and any text has tokens or is a bad record. The tokens of a
//! document do not depend on those read before, and those that are stored as bytes are these bytes.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
use millstream_batch::Dtype;
use millstream_format::RawChunk;
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::chunk::Chunk;
use millstream_pipeline::order::Packing;
use millstream_pipeline::sequences::{Packed, SequenceSpec, StoredTokens, TokenSpec};
use millstream_pipeline::spec::{ColumnSpec, OnBadRecord};
use millstream_pipeline::tokenizer::{Tokenizer, Tokenizers};
use millstream_pipeline::transform::Transform;

use crate::input::Input;

const PATH: &str = "tokenizer.json";

/// The first two bytes are the length of the file of the tokenizer, which follows; the rest are documents, ended by zeros.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let length = input.below(1 << 16);
    let file = input.take(length);
    let documents: Vec<&[u8]> = input.0.split(|&byte| byte == 0).take(32).collect();
    check_stored(&documents);
    let Ok(tokenizer) = Tokenizer::parse(file, PATH) else { return };
    let tokenizers = Tokenizers::from([(PATH.to_owned(), Arc::new(tokenizer))]);
    let of_text = TokenSpec { tokenizer: Some(PATH.to_owned()), ..TokenSpec::default() };
    let (together, usable) = read(of_text.clone(), &tokenizers, &documents);
    let texts = documents.iter().map(|document| str::from_utf8(document).is_ok());
    assert!(texts.zip(&usable).all(|(is_text, &usable)| is_text || !usable));
    let mut row = 0;
    for (document, usable) in documents.iter().zip(usable) {
        let (alone, again) = read(of_text.clone(), &tokenizers, &[document]);
        assert_eq!(again, [usable]);
        if usable {
            assert_eq!(alone.columns[0].row(0), together.columns[0].row(row));
            row += 1;
        }
    }
}

fn check_stored(documents: &[&[u8]]) {
    let spec = TokenSpec { stored: Some(StoredTokens::Uint16), ..TokenSpec::default() };
    let (chunk, usable) = read(spec, &Tokenizers::new(), documents);
    let whole = documents.iter().filter(|document| document.len() % 2 == 0);
    assert_eq!(usable.iter().filter(|&&usable| usable).count(), chunk.rows());
    for (row, document) in whole.enumerate() {
        let (tokens, _) = document.as_chunks::<2>();
        let expected: Vec<u8> =
            tokens.iter().flat_map(|&token| i32::from(u16::from_le_bytes(token)).to_ne_bytes()).collect();
        assert_eq!(chunk.columns[0].row(row), expected);
    }
}

/// The documents that are usable, and which those are.
fn read(tokens: TokenSpec, tokenizers: &Tokenizers, documents: &[&[u8]]) -> (Chunk, Vec<bool>) {
    let spec = SequenceSpec { length: 16, how: Packing::BestFit };
    let column = ColumnSpec {
        name: "t".to_owned(),
        column: "t".to_owned(),
        kind: spec.column_kind(Dtype::Int32),
        missing: None,
        image: None,
        tokens: Some(tokens),
    };
    let transform = Transform::of_columns(&[column], Some(Packed { spec: &spec, tokenizers }), &[]).unwrap();
    let array: ArrayRef = Arc::new(documents.iter().copied().map(Some).collect::<BinaryArray>());
    let raw = RawChunk::new("x".into(), RecordBatch::try_from_iter([("t", array)]).unwrap(), 0);
    let bad = BadRecords::new(OnBadRecord::Skip { limit: u64::MAX });
    let found = transform.apply(&raw, &bad).unwrap();
    let usable = found.usable.unwrap_or(vec![true; documents.len()]);
    (found.chunk, usable)
}

/// A tokenizer of each model, with some texts.
pub fn seeds() -> Vec<Vec<u8>> {
    let bpe = r#"{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,
        "end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":true,
        "vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ġa":4,"<0x00>":5},"merges":[["a","b"],["Ġ","a"]]}"#;
    let unigram = r#"{"type":"Unigram","unk_id":0,"byte_fallback":false,
        "vocab":[["<unk>",0.0],["a",-1.5],["b",-2.5],["ab",-2.0],["▁",-3.0]]}"#;
    let pieces = r###"{"type":"WordPiece","unk_token":"?","continuing_subword_prefix":"##",
        "max_input_chars_per_word":9,"vocab":{"?":0,"a":1,"b":2,"##b":3}}"###;
    let words = r#"{"type":"WordLevel","unk_token":"?","vocab":{"?":0,"a":1,"ab":2}}"#;
    let byte_level = r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}"#;
    let split = r#"{"type":"Split","pattern":{"Regex":"\\s+(?!\\S)|\\p{L}+"},"behavior":"Isolated",
        "invert":false}"#;
    let metaspace = r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}"#;
    let replace = r#"{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"a"},
        {"type":"Replace","pattern":{"String":" "},"content":"_"},{"type":"NFKC"}]}"#;
    let map = r#"{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAABhYmMAZGUA"}"#;
    let files = [
        file("null", byte_level, bpe),
        file(replace, metaspace, unigram),
        file(r#"{"type":"BertNormalizer","lowercase":true}"#, r#"{"type":"BertPreTokenizer"}"#, pieces),
        file(map, split, words),
        file("null", r#"{"type":"WhitespaceSplit"}"#, words),
    ];
    let texts = "ab a b\0\0a\u{301} \u{3042}\u{1f600}\0 <|end|> abab\0\u{2028}";
    files
        .map(|file| [&(file.len() as u16).to_le_bytes()[..], file.as_bytes(), texts.as_bytes()].concat())
        .into()
}

fn file(normalizer: &str, pre_tokenizer: &str, model: &str) -> String {
    format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"normalizer":{normalizer},
        "added_tokens":[{{"id":9,"content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,
        "normalized":false,"special":true}}],
        "pre_tokenizer":{pre_tokenizer},"post_processor":null,"decoder":null,"model":{model}}}"#
    )
}

/// Parts of files of tokenizers.
pub fn dictionary() -> Vec<Vec<u8>> {
    let parts = [
        "\"type\":",
        "\"Digits\"",
        "\"individual_digits\":true",
        "\"Punctuation\"",
        "\"NFD\"",
        "\"Strip\"",
        "\"strip_left\":true",
        "\"Lowercase\"",
        "\"Sequence\"",
        "\"pretokenizers\":[",
        "\"FixedLength\"",
        "\"length\":0",
        "\"UnicodeScripts\"",
        "\"CharDelimiterSplit\"",
        "\"delimiter\":\"a\"",
        "\"ByteFallback\"",
        "\"ignore_merges\":true",
        "\"MergedWithNext\"",
        "\"invert\":true",
        "\"TemplateProcessing\"",
    ];
    parts.map(|part| part.as_bytes().to_vec()).to_vec()
}
