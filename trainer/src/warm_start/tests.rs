#![allow(clippy::unwrap_used)]

use millstream_batch::IdFeature;

use super::*;
use crate::spec::{
    CrossSpec, DlrmInteraction, DlrmSpec, EmbeddingInit, EmbeddingSpec, LinearSpec, OptimizerSpec, Pooling,
};

const SGD: OptimizerSpec = OptimizerSpec::Sgd { learning_rate: 0.1, l2: 0.0 };

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Numeric features `x` and `y`, and id features `a` to `d`.
fn schema(cardinality: u32) -> BatchSchema {
    BatchSchema {
        rows: 4,
        labels: Vec::new(),
        weighted: false,
        dense: names(&["x", "y"]),
        ids: ["a", "b", "c", "d"].map(|name| IdFeature { name: name.into(), cardinality }).into(),
        ragged: Vec::new(),
        columns: Vec::new(),
        position_bytes: 0,
    }
}

fn linear(features: &[&str]) -> ModelSpec {
    ModelSpec::Linear(LinearSpec { features: names(features), optimizer: SGD })
}

fn dlrm(features: &[&str], interaction: DlrmInteraction) -> ModelSpec {
    ModelSpec::Dlrm(DlrmSpec {
        features: names(features),
        embedding: EmbeddingSpec {
            dim: 2.into(),
            pooling: Pooling::Sum,
            init: EmbeddingInit::default(),
            optimizer: SGD,
            tables: Vec::new(),
        },
        bottom: vec![3],
        interaction,
        top: vec![5],
        hidden_layer: Default::default(),
        optimizer: SGD,
    })
}

fn same_ids() -> IdMappings {
    ["a", "b", "c", "d"].map(|feature| (feature.to_owned(), IdMapping::Same)).into()
}

fn warm(then: &ModelSpec, now: &ModelSpec) -> Result<WarmStart, WarmStartError> {
    let schema = schema(6);
    WarmStart::new((then, &schema, &[]), (now, &schema, &[]), &same_ids())
}

fn rows_of<'a>(warm: &'a WarmStart, parameter: &str) -> &'a [Place] {
    &warm.carried[parameter].rows
}

#[test]
fn rows_follow_their_inputs() {
    use Place::{Initial, Then, Zeros};
    let then = dlrm(&["x", "a", "b", "c"], DlrmInteraction::Dot);
    let now = dlrm(&["y", "c", "x", "a", "d"], DlrmInteraction::Dot);
    let warm = warm(&then, &now).unwrap();
    assert_eq!(rows_of(&warm, "bottom.layer.0.weight"), [Zeros, Then(0)]);
    // Two columns of the bottom, then dot products: in the source (a, 0), (b, 0), (b, a), (c, 0), (c, a), (c,
    // b), and here (c, 0), (a, 0), (a, c), (d, 0), (d, c), (d, a).
    let products = [Then(5), Then(2), Then(6), Initial, Initial, Initial];
    assert_eq!(rows_of(&warm, "top.layer.0.weight"), [&[Then(0), Then(1)][..], &products].concat());
    let report = warm.report();
    assert_eq!(report.partial, ["bottom.layer.0.weight", "top.layer.0.weight"]);
    assert_eq!(report.initialized, [("embedding.d".to_owned(), "is new".to_owned())]);
    assert_eq!(report.unused, ["embedding.b"]);
    let expected = "8 of 11 parameters copied in full; in part: bottom.layer.0.weight, top.layer.0.weight; initialized: \
                embedding.d (is new); unused: embedding.b";
    assert_eq!(report.to_string(), expected);
}

#[test]
fn other_shapes_and_incompatible_ids_are_initialized() {
    let (then, now) = (schema(6), schema(7));
    let spec = linear(&["x", "a", "b", "c"]);
    let ids = IdMappings::from([
        ("a".to_owned(), IdMapping::Same),
        ("b".to_owned(), IdMapping::Mapped([Some(5), None].into_iter().cycle().take(7).collect())),
        ("c".to_owned(), IdMapping::Incompatible("is of another kind in the source".to_owned())),
    ]);
    let warm = WarmStart::new((&spec, &then, &[]), (&spec, &now, &[]), &ids).unwrap();
    let expected = [Place::Then(5), Place::Zeros];
    assert_eq!(rows_of(&warm, "linear.ids.b")[..2], expected);
    let reason =
        |name: &str| warm.report().initialized.iter().find(|(other, _)| other == name).unwrap().1.as_str();
    assert_eq!(reason("linear.ids.a"), "has shape [6] in the source and [7] here");
    assert_eq!(reason("linear.ids.c"), "`c` is of another kind in the source");
    assert_eq!(warm.report().full, ["linear.dense", "linear.bias"]);
}

#[test]
fn models_with_nothing_in_common_are_refused() {
    let crossed = DlrmInteraction::Cross(CrossSpec { layers: 1, rank: None });
    let refused = warm(&linear(&["x"]), &dlrm(&["x", "a"], crossed)).unwrap_err();
    let expected = "a model of kind `dlrm` cannot start from the weights of a model of kind `linear`";
    assert_eq!(refused.to_string(), expected);
    // A bias always matches.
    assert_eq!(warm(&linear(&["x"]), &linear(&["y"])).unwrap().report().full, ["linear.bias"]);
}

#[test]
fn an_earlier_id_out_of_range_has_no_place() {
    let spec = linear(&["a"]);
    let ids = IdMapping::Mapped(vec![Some(5), Some(6), None, None, None, None]);
    let ids = IdMappings::from([("a".to_owned(), ids)]);
    let warm = WarmStart::new((&spec, &schema(6), &[]), (&spec, &schema(6), &[]), &ids).unwrap();
    assert_eq!(rows_of(&warm, "linear.ids.a")[..2], [Place::Then(5), Place::Zeros]);
}
