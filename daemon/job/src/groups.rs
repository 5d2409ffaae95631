//! Features whose ids group rows.

use millstream_document::problems::suggestion;
use millstream_document::section::{Section, Text};
use millstream_pipeline::spec::FeatureKind;

use super::features::Feature;

/// The features that may group rows: the job file defines features of these `names`; `features` are those without
/// errors.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    pub(super) names: &'a [&'a str],
    pub(super) features: &'a [Feature],
}

impl Groups<'_> {
    /// Checks that `group`, in this section, names a feature with one id per row, and returns the name.
    pub(super) fn read(&self, section: &Section<'_>, Text { text, at }: Text<'_>) -> String {
        let spec = self.features.iter().map(|feature| &feature.spec).find(|spec| spec.name == text);
        if !self.names.contains(&text) {
            let hint = suggestion(text, self.names.iter().copied());
            section.error_at(at, format!("`{text}` is not in [features]{hint}"));
        } else if spec
            .is_some_and(|spec| matches!(spec.kind, FeatureKind::Numeric { .. } | FeatureKind::Vector { .. }))
        {
            section.error_at(
                at,
                format!("`{text}` is numeric, but groups are ids: use another kind of feature"),
            );
        } else if spec.is_some_and(|spec| spec.maximum.is_some()) {
            section.error_at(at, format!("`{text}` is multi-valued, but a row belongs to one group"));
        }
        text.to_owned()
    }
}
