//! Checks the Arrow schema that a footer may contain, before the `parquet` crate decodes it.
//!
//! It is a Flatbuffer in base64. Tables of a Flatbuffer may share others, so that a few bytes can describe a schema of any
//! size: the crate accepts 2 GiB. Writers share nothing but the layouts of tables.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flatbuffers::VerifierOptions;
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::file::metadata::ParquetMetaData;

use super::grammar::MAX_SCHEMA_DEPTH;

/// The longest encoded schema: over 100,000 columns.
const MAX_ENCODED_BYTES: usize = 16 << 20;
/// The size of a schema without shared parts, relative to its stored size. Shared layouts make it 1.5 to 2.
const MAX_EXPANSION: usize = 4;
/// Allowance for a small schema.
const MIN_EXPANDED_BYTES: usize = 4 << 10;
/// Memory for a decoded schema, relative to its stored size: a field of 60 bytes needs about 200.
const DECODED_PER_BYTE: u64 = 4;

/// Checks the schema in the metadata of a footer. Returns its memory once decoded.
pub(super) fn check(metadata: &ParquetMetaData) -> Result<u64, String> {
    let values = metadata.file_metadata().key_value_metadata().into_iter().flatten();
    let encoded =
        values.filter(|pair| pair.key == ARROW_SCHEMA_META_KEY).filter_map(|pair| pair.value.as_deref());
    encoded.map(check_encoded).sum()
}

fn check_encoded(encoded: &str) -> Result<u64, String> {
    if encoded.len() > MAX_ENCODED_BYTES {
        return Err(format!(
            "its Arrow schema has {} bytes, at most {MAX_ENCODED_BYTES} are supported",
            encoded.len()
        ));
    }
    // The crate reports what it cannot decode.
    let Ok(decoded) = BASE64_STANDARD.decode(encoded) else { return Ok(0) };
    let message = match decoded.split_at_checked(8) {
        Some((prefix, message)) if prefix.starts_with(&[0xff; 4]) && !message.is_empty() => message,
        _ => &decoded,
    };
    let expanded = (MAX_EXPANSION * message.len()).max(MIN_EXPANDED_BYTES);
    let options = VerifierOptions {
        max_depth: MAX_SCHEMA_DEPTH,
        max_tables: expanded,
        max_apparent_size: expanded,
        ..VerifierOptions::default()
    };
    arrow_ipc::root_as_message_with_opts(&options, message)
        .map_err(|error| format!("its Arrow schema is damaged, too deep or shares its parts: {error}"))?;
    Ok(DECODED_PER_BYTE * message.len() as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow_ipc::{
        FieldBuilder, ListBuilder, MessageBuilder, MessageHeader, MetadataVersion, NullBuilder,
        SchemaBuilder, Type,
    };
    use arrow_schema::{DataType, Field, Schema, TimeUnit};
    use flatbuffers::{FlatBufferBuilder, WIPOffset};
    use parquet::arrow::encode_arrow_schema;

    use super::*;

    /// Ends a message with a schema of these fields.
    fn message<'a>(mut to: FlatBufferBuilder<'a>, fields: &[WIPOffset<arrow_ipc::Field<'a>>]) -> String {
        let fields = to.create_vector(fields);
        let mut schema = SchemaBuilder::new(&mut to);
        schema.add_fields(fields);
        let schema = schema.finish();
        let mut message = MessageBuilder::new(&mut to);
        message.add_version(MetadataVersion::V5);
        message.add_header_type(MessageHeader::Schema);
        message.add_header(schema.as_union_value());
        let message = message.finish();
        to.finish(message, None);
        BASE64_STANDARD.encode(to.finished_data())
    }

    #[test]
    fn schemas_of_writers_pass() {
        let types = [
            DataType::Int64,
            DataType::LargeUtf8,
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            DataType::new_list(DataType::Float32, true),
        ];
        for data_type in &types {
            let fields = (0..2_000).map(|column| Field::new(format!("c{column}"), data_type.clone(), true));
            let encoded = encode_arrow_schema(&Schema::new(fields.collect::<Vec<_>>()));
            check_encoded(&encoded).unwrap();
        }
        let nested = (0..30).fold(DataType::Int64, |inner, _| DataType::new_list(inner, true));
        let schema = Schema::new_with_metadata(
            vec![Arc::new(Field::new("nested", nested, true))],
            [("key".to_owned(), "value".repeat(10_000))],
        );
        check_encoded(&encode_arrow_schema(&schema)).unwrap();
        assert_eq!(check_encoded("no base64!"), Ok(0));
    }

    #[test]
    fn a_schema_does_not_share_its_parts_without_bound() {
        let mut to = FlatBufferBuilder::new();
        let name = to.create_string(&"n".repeat(10_000));
        let null = NullBuilder::new(&mut to).finish();
        let mut field = FieldBuilder::new(&mut to);
        field.add_name(name);
        field.add_type_type(Type::Null);
        field.add_type_(null.as_union_value());
        let field = field.finish();
        let encoded = message(to, &vec![field; 10_000]);
        assert!(encoded.len() < 100_000);
        let error = check_encoded(&encoded).unwrap_err();
        assert!(error.contains("shares its parts"), "{error}");
    }

    #[test]
    fn a_schema_nests_up_to_a_limit() {
        let mut to = FlatBufferBuilder::new();
        let name = to.create_string("n");
        let null = NullBuilder::new(&mut to).finish();
        let list = ListBuilder::new(&mut to).finish();
        let mut field = FieldBuilder::new(&mut to);
        field.add_name(name);
        field.add_type_type(Type::Null);
        field.add_type_(null.as_union_value());
        let mut field = field.finish();
        for _ in 0..1_000 {
            let children = to.create_vector(&[field]);
            let mut outer = FieldBuilder::new(&mut to);
            outer.add_name(name);
            outer.add_type_type(Type::List);
            outer.add_type_(list.as_union_value());
            outer.add_children(children);
            field = outer.finish();
        }
        let error = check_encoded(&message(to, &[field])).unwrap_err();
        assert!(error.contains("too deep"), "{error}");
    }

    #[test]
    fn a_schema_has_a_longest_text() {
        let error = check_encoded(&"A".repeat(MAX_ENCODED_BYTES + 1)).unwrap_err();
        assert!(error.contains("at most"), "{error}");
    }
}
