//! Slot layouts over schemas of all shapes.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::column::Dtype;

fn kinds() -> impl Strategy<Value = ColumnKind> {
    let dtype = || prop::sample::select(&Dtype::ALL[..]);
    prop_oneof![
        (dtype(), prop::collection::vec(1_u32..4, 0..4))
            .prop_map(|(dtype, shape)| ColumnKind::Fixed { dtype, shape }),
        (dtype(), 1_u32..5).prop_map(|(dtype, maximum)| ColumnKind::Ragged { dtype, maximum }),
        (1_u32..40).prop_map(|maximum| ColumnKind::Raw { maximum }),
    ]
}

prop_compose! {
    fn schemas()(
        rows in 1_u32..3000,
        labels in 0_usize..4,
        weighted: bool,
        dense in 0_usize..6,
        ids in 0_usize..6,
        maxima in prop::collection::vec((0_u32..9, any::<bool>()), 0..4),
        columns in prop::collection::vec(kinds(), 0..4),
        position_bytes in 0_u32..700,
    ) -> BatchSchema {
        BatchSchema {
            rows,
            labels: (0..labels).map(|i| format!("label{i}")).collect(),
            weighted,
            dense: (0..dense).map(|i| format!("dense{i}")).collect(),
            ids: (0..ids).map(|i| IdFeature { name: format!("id{i}"), cardinality: 10 }).collect(),
            ragged: maxima
                .into_iter()
                .enumerate()
                .map(|(i, (maximum, weighted))| RaggedFeature {
                    name: format!("ragged{i}"),
                    cardinality: 10,
                    maximum,
                    weighted,
                })
                .collect(),
            columns: columns
                .into_iter()
                .enumerate()
                .map(|(i, kind)| Column { name: format!("column{i}"), kind })
                .collect(),
            position_bytes,
        }
    }
}

/// All sections, in the order that the module documents.
fn sections(layout: &SlotLayout) -> Vec<Section> {
    let mut all = vec![layout.labels];
    all.extend(layout.weights);
    all.extend([layout.dense, layout.ids]);
    for RaggedSection { offsets, values, weights } in &layout.ragged {
        all.extend([offsets, values].into_iter().chain(weights));
    }
    for ColumnSection { offsets, values } in &layout.columns {
        all.extend(offsets.iter().chain([values]));
    }
    all.push(layout.position);
    all
}

proptest! {
    #[test]
    fn sections_are_aligned_disjoint_and_within_the_slot(schema in schemas()) {
        let layout = SlotLayout::of(&schema).unwrap();
        let mut end = HEADER_BYTES;
        for section in sections(&layout) {
            prop_assert!(section.offset.is_multiple_of(ALIGNMENT));
            prop_assert!(section.offset >= end && section.offset < end + ALIGNMENT, "no overlap, no gap");
            end = section.offset + section.bytes;
        }
        prop_assert!(layout.slot_bytes().is_multiple_of(ALIGNMENT));
        prop_assert!(layout.slot_bytes() >= end && layout.slot_bytes() < end + ALIGNMENT);
    }

    #[test]
    fn section_sizes_match_the_schema(schema in schemas()) {
        let layout = SlotLayout::of(&schema).unwrap();
        let rows = schema.rows as usize;
        prop_assert_eq!(layout.labels.bytes, rows * schema.label_count() * 4);
        prop_assert_eq!(layout.weights.map(|section| section.bytes), schema.weighted.then_some(rows * 4));
        prop_assert_eq!(layout.dense.bytes, rows * schema.dense.len() * 4);
        prop_assert_eq!(layout.ids.bytes, rows * schema.ids.len() * 4);
        prop_assert_eq!(layout.ragged.len(), schema.ragged.len());
        for (section, feature) in layout.ragged.iter().zip(&schema.ragged) {
            prop_assert_eq!(section.offsets.bytes, (rows + 1) * 4);
            prop_assert_eq!(section.values.bytes, rows * feature.maximum as usize * 4);
            let weights = section.weights.map(|section| section.bytes);
            prop_assert_eq!(weights, feature.weighted.then_some(section.values.bytes));
        }
        prop_assert_eq!(layout.columns.len(), schema.columns.len());
        for (section, Column { kind, .. }) in layout.columns.iter().zip(&schema.columns) {
            let (offsets, values) = match kind {
                ColumnKind::Fixed { shape, .. } => (None, shape.iter().product()),
                ColumnKind::Ragged { maximum, .. } | ColumnKind::Raw { maximum } => {
                    (Some((rows + 1) * 4), *maximum)
                }
            };
            prop_assert_eq!(section.offsets.map(|section| section.bytes), offsets);
            prop_assert_eq!(section.values.bytes, rows * values as usize * kind.dtype().bytes());
        }
        prop_assert_eq!(layout.position.bytes, schema.position_bytes as usize);
    }

    #[test]
    fn fingerprints_differ_exactly_when_schemas_do(one in schemas(), other in schemas()) {
        let (a, b) = (SlotLayout::of(&one).unwrap(), SlotLayout::of(&other).unwrap());
        prop_assert_eq!(a.fingerprint() == b.fingerprint(), one == other);
    }
}

fn small() -> BatchSchema {
    let id = |name: &str, cardinality| IdFeature { name: name.into(), cardinality };
    BatchSchema {
        rows: 256,
        dense: vec!["age".into(), "hours".into()],
        ids: vec![id("education", 17), id("occupation", 1000)],
        ragged: vec![RaggedFeature { name: "tags".into(), cardinality: 50, maximum: 4, weighted: false }],
        position_bytes: 64,
        ..BatchSchema::default()
    }
}

fn fixed(dtype: Dtype, shape: &[u32]) -> ColumnKind {
    ColumnKind::Fixed { dtype, shape: shape.to_vec() }
}

/// `small` with a typed column of each kind.
fn typed() -> BatchSchema {
    let column = |name: &str, kind| Column { name: name.into(), kind };
    let columns = vec![
        column("image", fixed(Dtype::Uint8, &[2, 3])),
        column("tokens", ColumnKind::Ragged { dtype: Dtype::Int32, maximum: 6 }),
        column("url", ColumnKind::Raw { maximum: 6 }),
    ];
    BatchSchema { columns, ..small() }
}

#[test]
fn fingerprint_depends_on_every_typed_column() {
    let changes: [fn(&mut BatchSchema); 15] = [
        |_| {},
        |schema| schema.columns.clear(),
        |schema| schema.columns.truncate(2),
        |schema| schema.columns.swap(0, 1),
        |schema| schema.columns[0].name.push('x'),
        |schema| schema.columns[0].kind = fixed(Dtype::Int8, &[2, 3]),
        |schema| schema.columns[0].kind = fixed(Dtype::Bool, &[2, 3]),
        |schema| schema.columns[0].kind = fixed(Dtype::Uint8, &[3, 2]),
        |schema| schema.columns[0].kind = fixed(Dtype::Uint8, &[6]),
        |schema| schema.columns[0].kind = fixed(Dtype::Uint8, &[6, 1]),
        |schema| schema.columns[0].kind = ColumnKind::Ragged { dtype: Dtype::Uint8, maximum: 6 },
        |schema| schema.columns[0].kind = ColumnKind::Raw { maximum: 6 },
        |schema| schema.columns[1].kind = ColumnKind::Ragged { dtype: Dtype::Int32, maximum: 7 },
        |schema| schema.columns[1].kind = ColumnKind::Ragged { dtype: Dtype::Float32, maximum: 6 },
        |schema| schema.columns[2].kind = ColumnKind::Raw { maximum: 7 },
    ];
    let mut seen: Vec<u64> = changes
        .iter()
        .map(|change| {
            let mut schema = typed();
            change(&mut schema);
            SlotLayout::of(&schema).unwrap().fingerprint()
        })
        .collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count);
}

#[test]
fn typed_columns_serialize_with_their_kind() {
    let written = serde_json::to_value(typed()).unwrap();
    let columns = serde_json::json!([
        {"name": "image", "kind": "fixed", "dtype": "uint8", "shape": [2, 3]},
        {"name": "tokens", "kind": "ragged", "dtype": "int32", "maximum": 6},
        {"name": "url", "kind": "raw", "maximum": 6},
    ]);
    assert_eq!(written["columns"], columns);
    assert_eq!(serde_json::from_value::<BatchSchema>(written).unwrap(), typed());
    assert_eq!(serde_json::to_value(small()).unwrap().get("columns"), None);
}

#[test]
fn fingerprint_depends_on_every_field() {
    let changes: [fn(&mut BatchSchema); 15] = [
        |schema| schema.rows += 1,
        |schema| schema.labels = vec!["bought".into()],
        |schema| schema.labels = vec!["bought".into(), "read".into()],
        |schema| schema.weighted = true,
        |schema| schema.dense.swap(0, 1),
        |schema| schema.dense = vec!["agehours".into()],
        |schema| schema.dense = vec!["ageh".into(), "ours".into()],
        |schema| schema.ids.swap(0, 1),
        |schema| schema.ids[0].cardinality += 1,
        |schema| schema.ids.truncate(1),
        |schema| schema.ragged[0].name.push('x'),
        |schema| schema.ragged[0].cardinality += 1,
        |schema| schema.ragged[0].maximum += 1,
        |schema| schema.ragged[0].weighted = true,
        |schema| schema.position_bytes += 1,
    ];
    let mut seen = vec![SlotLayout::of(&small()).unwrap().fingerprint()];
    for change in changes {
        let mut schema = small();
        change(&mut schema);
        seen.push(SlotLayout::of(&schema).unwrap().fingerprint());
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count);
}

#[test]
fn fingerprint_is_stable() {
    // Computed by an independent FNV-1a over the same bytes.
    assert_eq!(SlotLayout::of(&small()).unwrap().fingerprint(), 0xb456_ce76_b5b0_c4f6);
}

/// Checkpoint manifests contain schemas.
#[test]
fn unweighted_ragged_features_serialize_without_the_flag() {
    let written = serde_json::to_value(small()).unwrap();
    let tags = serde_json::json!({"name": "tags", "cardinality": 50, "maximum": 4});
    assert_eq!(written["ragged"], serde_json::json!([tags]));
    assert_eq!(serde_json::from_value::<BatchSchema>(written).unwrap(), small());
    let mut weighted = small();
    weighted.ragged[0].weighted = true;
    let written = serde_json::to_value(&weighted).unwrap();
    assert_eq!(serde_json::from_value::<BatchSchema>(written).unwrap(), weighted);
}

#[test]
fn invalid_schemas_are_rejected() {
    let with = |change: fn(&mut BatchSchema)| {
        let mut schema = small();
        change(&mut schema);
        SlotLayout::of(&schema).unwrap_err()
    };
    assert_eq!(with(|schema| schema.rows = 0), LayoutError::NoRows);
    assert_eq!(
        with(|schema| (schema.rows, schema.ragged[0].maximum) = (1 << 20, 1 << 12)),
        LayoutError::TooManyValues { feature: "tags".into(), rows: 1 << 20, maximum: 1 << 12 }
    );
    let message = with(|schema| (schema.rows, schema.ragged[0].maximum) = (1 << 20, 1 << 12)).to_string();
    assert!(message.contains("`tags`") && message.contains("4096"), "{message}");
    let with_column = |kind: ColumnKind| {
        let columns = vec![Column { name: "url".into(), kind }];
        SlotLayout::of(&BatchSchema { rows: 1 << 20, columns, ..small() })
    };
    let too_many = LayoutError::TooManyValues { feature: "url".into(), rows: 1 << 20, maximum: 1 << 12 };
    assert_eq!(with_column(ColumnKind::Raw { maximum: 1 << 12 }), Err(too_many.clone()));
    assert_eq!(with_column(ColumnKind::Ragged { dtype: Dtype::Bool, maximum: 1 << 12 }), Err(too_many));
    // Fixed columns have no offsets to exceed.
    assert!(with_column(fixed(Dtype::Float64, &[1 << 12])).is_ok());
    let too_large = Err(LayoutError::TooLarge { rows: 1 << 20 });
    assert_eq!(with_column(fixed(Dtype::Uint8, &[1 << 16, 1 << 16])), too_large);
}
