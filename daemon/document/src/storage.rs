//! The `[storage]` of a file.

use std::path::Path;

use millstream_io::storage::{AzSpec, GsSpec, S3Spec, StorageSpec, is_local};

use crate::section::Section;

/// Reads the section. Relative paths in it start at `base`.
pub fn read(mut storage: Section<'_>, base: &Path) -> StorageSpec {
    fn text(section: &mut Section<'_>, key: &'static str) -> Option<String> {
        section.text(key).map(|value| value.text.to_owned())
    }
    let (mut gs, mut s3, mut az) = (
        storage.section("gs", "[storage.gs]"),
        storage.section("s3", "[storage.s3]"),
        storage.section("az", "[storage.az]"),
    );
    let spec = StorageSpec {
        gs: GsSpec {
            endpoint: text(&mut gs, "endpoint"),
            anonymous: gs.flag("anonymous"),
            service_account: text(&mut gs, "service_account").map(|path| base.join(path)),
        },
        s3: S3Spec {
            endpoint: text(&mut s3, "endpoint"),
            anonymous: s3.flag("anonymous"),
            region: text(&mut s3, "region"),
        },
        az: AzSpec {
            endpoint: text(&mut az, "endpoint"),
            anonymous: az.flag("anonymous"),
            account: text(&mut az, "account"),
        },
        deadline_seconds: storage.whole_u32("deadline_seconds", 1..=86_400),
        catalog: text(&mut storage, "catalog").map(|catalog| match is_local(&catalog) {
            Ok(true) => {
                let path = catalog.strip_prefix("file://").unwrap_or(&catalog);
                base.join(path).to_string_lossy().into_owned()
            }
            _ => catalog,
        }),
    };
    if let Err((name, message)) = spec.check() {
        storage.error(name, message);
    }
    [gs, s3, az].into_iter().for_each(Section::finish);
    storage.finish();
    spec
}
