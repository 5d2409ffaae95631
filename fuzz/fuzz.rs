//! libFuzzer over one property, which the environment variable `MILLSTREAM_PROPERTY` names.
//!
//! One program serves all properties, because each more would be linked with most of Millstream.

#![no_main]

use std::sync::LazyLock;

use millstream_properties::PROPERTIES;

static CHECK: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("MILLSTREAM_PROPERTY").expect("MILLSTREAM_PROPERTY names a property");
    if name == "tokens" {
        // libFuzzer's hook aborts at any panic. Those of the library of tokenizers are caught, and are no defect; a panic
        // that is not caught still aborts.
        let _ = std::panic::take_hook();
    }
    let property = PROPERTIES.iter().find(|property| property.name == name);
    property.unwrap_or_else(|| panic!("no property is named `{name}`")).check
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| CHECK(data));
