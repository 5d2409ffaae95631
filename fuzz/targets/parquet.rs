//! libFuzzer over the property of the same name.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| millstream_properties::parquet::check(data));
