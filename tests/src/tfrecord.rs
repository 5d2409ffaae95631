//! TFRecord files of tf.train.Example, written byte by byte from their definitions: an implementation independent of
//! the one under test.

/// The value of a feature.
pub enum Value {
    /// A text.
    Bytes(String),
    /// A number.
    Float(f32),
    /// An integer.
    Int(i64),
    /// Several texts.
    Texts(Vec<String>),
    /// Several numbers.
    Floats(Vec<f32>),
}

/// Bytes before a record's data.
pub const HEADER_BYTES: usize = 12;

/// The bytes of a file of `records`.
pub fn file(records: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    for data in records {
        let length = (data.len() as u64).to_le_bytes();
        out.extend_from_slice(&length);
        out.extend_from_slice(&masked_crc(&length));
        out.extend_from_slice(&data);
        out.extend_from_slice(&masked_crc(&data));
    }
    out
}

/// The offset of each record of a file.
pub fn offsets(file: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut at = 0;
    while let Some(length) = file.get(at..).and_then(<[u8]>::first_chunk) {
        offsets.push(at);
        at += HEADER_BYTES + u64::from_le_bytes(*length) as usize + 4;
    }
    offsets
}

/// `message Example { Features features = 1; }`, `message Features { map<string, Feature> feature = 1; }`
pub fn example<'a>(features: impl Iterator<Item = (&'a str, Value)>) -> Vec<u8> {
    let entries = features.map(|(name, value)| {
        let entry = [field(1, name.as_bytes()), field(2, &feature(value))].concat();
        field(1, &entry)
    });
    field(1, &entries.collect::<Vec<_>>().concat())
}

/// `message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list
/// = 3; } }`, each list with its packed values as field 1.
fn feature(value: Value) -> Vec<u8> {
    match value {
        Value::Bytes(text) => field(1, &field(1, text.as_bytes())),
        Value::Float(number) => field(2, &field(1, &number.to_le_bytes())),
        Value::Int(number) => field(3, &field(1, &varint(number as u64))),
        Value::Texts(texts) => {
            field(1, &texts.iter().flat_map(|text| field(1, text.as_bytes())).collect::<Vec<_>>())
        }
        Value::Floats(numbers) => {
            field(2, &field(1, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>()))
        }
    }
}

/// A field of wire type 2: tag, length, bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2], varint(bytes.len() as u64).as_slice(), bytes].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Computed bit by bit from the polynomial.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_32c_has_the_standard_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
