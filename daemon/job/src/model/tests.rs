#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;

use millstream_trainer::spec::{
    AdamSpec, ChoiceLoss, CrossSpec, DcnStructure, DinSpec, DlrmInteraction, EmbeddingDim, EmbeddingInit,
    HiddenLayerSpec, LayerInit, ModelSpec, Normalization, OptimizerSpec, Pooling, TableSpec,
};

use super::super::Job;
use super::{ADAGRAD, FTRL, used};

const DATA: &str = r#"name = "clicks"
[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
[label]
column = "clicked"
[features]
age = { kind = "numeric" }
site = { kind = "hashed", buckets = 100 }
[model]
features = ["age", "site"]
"#;

fn model(text: &str) -> ModelSpec {
    match Job::parse(&format!("{DATA}{text}"), Path::new("job.toml"), &[]) {
        Ok((job, warnings)) => {
            assert_eq!(warnings, []);
            job.model
        }
        Err(error) => panic!("{error}"),
    }
}

fn error_text(text: &str) -> String {
    Job::parse(&format!("{DATA}{text}"), Path::new("job.toml"), &[]).unwrap_err().to_string()
}

#[test]
fn each_kind_has_defaults() {
    let ModelSpec::Linear(linear) = model("kind = \"linear\"") else { panic!("linear") };
    assert_eq!((linear.features.len(), linear.optimizer), (2, FTRL));
    let ModelSpec::Mlp(mlp) = model("kind = \"mlp\"") else { panic!("mlp") };
    assert_eq!((mlp.hidden, mlp.optimizer), (vec![100, 50], ADAGRAD));
    assert_eq!(
        (mlp.embedding.dim, mlp.embedding.pooling, mlp.embedding.optimizer),
        (8.into(), Pooling::Mean, ADAGRAD)
    );
    let ModelSpec::DeepFm(deepfm) = model("kind = \"deepfm\"") else { panic!("deepfm") };
    assert_eq!((deepfm.linear_optimizer, deepfm.optimizer), (FTRL, ADAGRAD));
    let ModelSpec::Dcn(dcn) = model("kind = \"dcn_v2\"") else { panic!("dcn_v2") };
    assert_eq!((dcn.structure, dcn.cross), (DcnStructure::Stacked, CrossSpec { layers: 3, rank: None }));
    let ModelSpec::Dlrm(dlrm) = model("kind = \"dlrm\"") else { panic!("dlrm") };
    assert_eq!(dlrm.interaction, DlrmInteraction::Dot);
    assert_eq!((dlrm.bottom, dlrm.top), (vec![64, 32], vec![100, 50]));
}

#[test]
fn every_key_is_read() {
    let adam = AdamSpec { learning_rate: 0.5, beta1: 0.25, beta2: 0.75, epsilon: 0.125, l2: 0.0 };
    let constants = "learning_rate = 0.5, beta1 = 0.25, beta2 = 0.75, epsilon = 0.125";
    let text = format!(
        "kind = \"dcn_v2\"\nembedding_dim = 3\npooling = \"sqrtn\"\nhidden = [7]\ndropout = 0.5\nnormalization = \"layer\"\nhidden_init = \"he_normal\"\nstructure = \"parallel\"\n\
         cross_layers = 2\ncross_rank = 5\n\
         optimizer = {{ kind = \"adamw\", {constants}, weight_decay = 0.0625 }}\n\
         embedding_optimizer = {{ kind = \"adam\", {constants}, l2 = 0.03125 }}"
    );
    let spec = model(&text);
    assert_eq!(used(&spec).len(), 2);
    let ModelSpec::Dcn(dcn) = spec else { panic!("dcn_v2") };
    assert_eq!((dcn.embedding.dim, dcn.embedding.pooling), (3.into(), Pooling::SqrtN));
    assert_eq!(dcn.embedding.optimizer, OptimizerSpec::Adam(AdamSpec { l2: 0.03125, ..adam }));
    assert_eq!(dcn.optimizer, OptimizerSpec::AdamW { adam, weight_decay: 0.0625 });
    assert_eq!(
        dcn.hidden_layer,
        HiddenLayerSpec {
            dropout: 0.5,
            normalization: Some(Normalization::Layer),
            init: LayerInit::HeNormal
        }
    );
    assert_eq!((dcn.hidden, dcn.structure), (vec![7], DcnStructure::Parallel));
    assert_eq!(dcn.cross, CrossSpec { layers: 2, rank: Some(5) });

    let text = "kind = \"dlrm\"\nbottom = [9]\ntop = []\ninteraction = \"cross\"\ncross_rank = 4\n\
                optimizer = { kind = \"momentum\", learning_rate = 0.5, momentum = 0.75, nesterov = true, l2 = 0.25 }\n\
                embedding_optimizer = { kind = \"rowwise_adagrad\", initial_accumulator = 0.5, l2 = 0.125 }";
    let ModelSpec::Dlrm(dlrm) = model(text) else { panic!("dlrm") };
    assert_eq!((dlrm.bottom, dlrm.top), (vec![9], vec![]));
    assert_eq!(dlrm.interaction, DlrmInteraction::Cross(CrossSpec { layers: 3, rank: Some(4) }));
    let momentum = OptimizerSpec::Momentum { learning_rate: 0.5, momentum: 0.75, nesterov: true, l2: 0.25 };
    assert_eq!(dlrm.optimizer, momentum);
    let rowwise = OptimizerSpec::RowWiseAdagrad {
        learning_rate: 0.05,
        initial_accumulator: 0.5,
        epsilon: 1e-7,
        l2: 0.125,
    };
    assert_eq!(dlrm.embedding.optimizer, rowwise);
}

#[test]
fn embeddings_of_wide_deep_may_have_a_separate_optimizer() {
    let deep = |more: &str| {
        let data = DATA.replace("features = [\"age\", \"site\"]\n", "");
        let text = format!("{data}kind = \"wide_deep\"\ndeep.features = [\"age\"]\n{more}");
        let (job, _) = Job::parse(&text, Path::new("job.toml"), &[]).unwrap();
        let ModelSpec::WideDeep(spec) = job.model else { panic!("wide_deep") };
        (spec.deep.optimizer, spec.deep.embedding_optimizer)
    };
    assert_eq!(deep(""), (ADAGRAD, None));
    let (optimizer, embedding_optimizer) =
        deep("deep.embedding_optimizer = { kind = \"sgd\", learning_rate = 0.5 }");
    let sgd = OptimizerSpec::Sgd { learning_rate: 0.5, l2: 0.0 };
    assert_eq!((optimizer, embedding_optimizer), (ADAGRAD, Some(sgd)));
}

#[test]
fn embeddings_use_the_jobs_initialization() {
    let init = |text: &str| {
        let ModelSpec::Mlp(mlp) = model(&format!("kind = \"mlp\"\n{text}")) else { panic!("mlp") };
        mlp.embedding.init
    };
    assert_eq!(init(""), EmbeddingInit::Uniform { limit: 0.05 });
    assert_eq!(init("embedding_init = \"zeros\""), EmbeddingInit::Zeros);
    assert_eq!(init("embedding_init = \"uniform_by_rows\""), EmbeddingInit::UniformByRows);
    assert_eq!(init("embedding_init = \"normal\""), EmbeddingInit::Normal { stddev: 0.05 });
    let text = "embedding_init = { kind = \"uniform\", limit = 0.25 }";
    assert_eq!(init(text), EmbeddingInit::Uniform { limit: 0.25 });
    let text = "embedding_init = { kind = \"truncated_normal\", stddev = 2 }";
    assert_eq!(init(text), EmbeddingInit::TruncatedNormal { stddev: 2.0 });
}

const SEEN: &str = "seen = { kind = \"hashed\", buckets = 100, multi = true, maximum = 5 }\n\
                    place = { kind = \"hashed\", buckets = 50 }\n\
                    colour = { kind = \"vocabulary\" }\nhue = { kind = \"vocabulary\" }\n\
                    again = { kind = \"vocabulary\", column = \"colour\" }\n[model]\n\
                    features = [\"seen\", \"site\", \"place\", \"colour\", \"hue\", \"again\"]\n\
                    kind = \"dcn_v2\"\n";

/// The job of a model over more features.
fn sharing(text: &str) -> Result<(Job, Vec<String>), String> {
    let data = DATA.split("[model]").next().unwrap();
    let text = format!("{data}{SEEN}{text}");
    let (job, _) = Job::parse(&text, Path::new("job.toml"), &[]).map_err(|error| error.to_string())?;
    let names = job.model.tables().iter().map(|table| table.name.clone()).collect();
    Ok((job, names))
}

#[test]
fn tables_of_embeddings_are_read() {
    let text = "embedding_dim = \"auto\"\n[model.embeddings.place]\ndim = 3\n\
                [model.embeddings.sites]\nfeatures = [\"seen\", \"site\"]\npooling = \"sqrtn\"\n\
                init = \"uniform_by_rows\"\n[model.embeddings.terms]\nfeatures = [\"colour\", \"again\"]\ndim = \"auto\"";
    let (job, names) = sharing(text).unwrap();
    assert_eq!(names, ["place", "sites", "terms"]);
    let ModelSpec::Dcn(dcn) = &job.model else { panic!("dcn_v2") };
    assert_eq!(dcn.embedding.dim, EmbeddingDim::Auto);
    let [place, sites, terms] = dcn.embedding.tables.as_slice() else { panic!("three tables") };
    let of_place = TableSpec {
        name: "place".into(),
        features: vec!["place".into()],
        dim: Some(3.into()),
        pooling: None,
        init: None,
    };
    assert_eq!(*place, of_place);
    assert_eq!(sites.features, ["seen", "site"]);
    assert_eq!((sites.dim, sites.pooling), (None, Some(Pooling::SqrtN)));
    assert_eq!(sites.init, Some(EmbeddingInit::UniformByRows));
    assert_eq!(terms.dim, Some(EmbeddingDim::Auto));
    let (again, _) = Job::parse(&job.text, Path::new("job.toml"), &[]).unwrap();
    assert_eq!(again.model, job.model);
}

#[test]
fn invalid_tables_are_reported_with_their_position() {
    let cases = [
        (
            "embeddings.sites = { features = [\"sit\"] }",
            "job.toml:18:34: error: `sit` is not a feature of the model; did you mean `site`?",
        ),
        (
            "embeddings.sites.dim = 3",
            "job.toml:18:12: error: `sites` is not a feature of the model; did you mean `site`?",
        ),
        (
            "embeddings.site.dim = 3\nembeddings.all.features = [\"seen\", \"site\"]",
            "job.toml:19:36: error: feature `site` is already in table `site`",
        ),
        (
            "embeddings.all.features = [\"seen\", \"place\"]",
            "job.toml:11:1: error: feature `place` shares table `all` with `seen`, so both need the same kind \
             and the same `buckets`, `boundaries` or given terms",
        ),
        (
            "embeddings.all.features = [\"colour\", \"hue\"]",
            "job.toml:13:1: error: feature `hue` shares table `all` with `colour`, so both need the same kind \
             and the same `buckets`, `boundaries` or given terms",
        ),
        ("embeddings.site.dim = \"wide\"", "job.toml:18:23: error: expected \"auto\", found \"wide\""),
        (
            "embeddings.site.width = 3",
            "job.toml:18:17: error: unknown key `width` in table `site` of embeddings",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(sharing(text).err().unwrap(), expected);
    }
}

#[test]
fn mistakes_are_reported_with_their_position() {
    let cases = [
        (
            "kind = \"deep_fm\"",
            "job.toml:12:8: error: expected \"linear\", \"mlp\", \"wide_deep\", \"deepfm\", \"dcn_v2\", \"din\", \
             \"dlrm\", \"mmoe\" or \"two_tower\", found \"deep_fm\"; did you mean `deepfm`?",
        ),
        ("kind = \"mlp\"\ncross_layers = 2", "job.toml:13:1: error: unknown key `cross_layers` in [model]"),
        (
            "kind = \"dlrm\"\ncross_layers = 2",
            "job.toml:13:16: error: `cross_layers` is for `interaction = \"cross\"`",
        ),
        (
            "kind = \"mlp\"\nembedding_init = { kind = \"uniform\", stddev = 1 }",
            "job.toml:13:38: error: unknown key `stddev` in `embedding_init`",
        ),
        (
            "kind = \"mlp\"\nembedding_init = { kind = \"normal\", stddev = 0 }",
            "job.toml:13:46: error: expected a number above 0, found 0",
        ),
        (
            "kind = \"mlp\"\noptimizer = { kind = \"rowwise_adagrad\" }",
            "job.toml:13:22: error: `rowwise_adagrad` applies to embeddings only (`embedding_optimizer`)",
        ),
        (
            "kind = \"mlp\"\noptimizer = { kind = \"adam\", beta1 = 1 }",
            "job.toml:13:38: error: expected a number of at least 0 and below 1, found 1",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error_text(text), expected);
    }
}

const TOWERS: &str = r#"name = "films"
[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
[label]
column = "watched"
[features]
age = { kind = "numeric" }
user = { kind = "hashed", buckets = 100 }
genre = { kind = "hashed", buckets = 10 }
film = { kind = "hashed", buckets = 1000 }
[model]
kind = "two_tower"
query.features = ["user", "age"]
item.features = ["genre"]
"#;

#[test]
fn two_towers_are_read() {
    let spec = |more: &str| {
        let (job, _) = Job::parse(&format!("{TOWERS}{more}"), Path::new("job.toml"), &[]).unwrap();
        let used: BTreeSet<_> = job.features.iter().map(|feature| feature.name.clone()).collect();
        let ModelSpec::TwoTower(spec) = job.model else { panic!("two_tower") };
        (spec, used.len())
    };
    let (usual, used) = spec("");
    assert_eq!((usual.dim, usual.normalize, usual.temperature, usual.item_id), (32, true, 0.05, None));
    assert_eq!((usual.query.hidden, usual.item.optimizer, used), (vec![64], ADAGRAD, 3));
    assert_eq!(usual.loss, ChoiceLoss::Softmax);
    assert_eq!(spec("loss = \"bpr\"").0.loss, ChoiceLoss::Bpr);
    let text = "dim = 7\nnormalize = false\nitem_id = \"film\"\nitem.embedding_dim = 3\nquery.hidden = []\n\
                query.embedding_optimizer = { kind = \"rowwise_adagrad\" }";
    let (spec, used) = spec(text);
    assert_eq!((spec.dim, spec.normalize, spec.temperature), (7, false, 1.0));
    assert_eq!((spec.item_id.as_deref(), used), (Some("film"), 4));
    let dims = [spec.query.embedding.dim, spec.item.embedding.dim];
    assert_eq!(dims, [8, 3].map(EmbeddingDim::Columns));
    assert!(matches!(spec.query.embedding.optimizer, OptimizerSpec::RowWiseAdagrad { .. }));
    assert_eq!((spec.query.hidden, spec.query.optimizer), (vec![], ADAGRAD));
}

#[test]
fn invalid_two_tower_settings_are_reported_with_their_position() {
    for (text, expected) in [
        ("item_id = \"fil\"", "job.toml:16:11: error: `fil` is not in [features]; did you mean `film`?"),
        ("temperature = 0", "job.toml:16:15: error: "),
        ("query.dims = 3", "job.toml:16:7: error: unknown key `dims` in [model.query]"),
        (
            "[training.loss]\nlabel_smoothing = 0.1",
            "job.toml:17:1: error: `label_smoothing` applies to losses of labels; a two-tower model's loss is `loss`",
        ),
        ("[training]\nmicro_batch_size = 16", "job.toml:17:20: error: a two-tower model needs whole batches"),
    ] {
        let error =
            Job::parse(&format!("{TOWERS}{text}"), Path::new("job.toml"), &[]).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Maxima of weighted features are refused, in each model and for each key that sets the pooling.
#[test]
fn weights_exclude_pooling_by_the_maximum() {
    let job = |model: &str| {
        let (head, _) = CLICKS.split_once("[model]").unwrap();
        let parsed = Job::parse(&format!("{head}[model]\n{model}"), Path::new("job.toml"), &[]);
        parsed.map(|(job, _)| job).map_err(|error| error.to_string())
    };
    let mlp = "kind = \"mlp\"\nfeatures = [\"item\", \"seen\", \"shops\"]\n";
    let deep = "kind = \"wide_deep\"\nwide.features = [\"shops\"]\ndeep.features = [\"seen\", \"shops\"]\n";
    let towers = "kind = \"two_tower\"\nquery.features = [\"seen\", \"shops\"]\nitem.features = [\"item\"]\n";
    let sequence = "kind = \"din\"\nfeatures = [\"item\", \"seen\", \"shops\"]\n\
                    sequences = [{ history = \"seen\", target = \"item\" }]\n";
    for (model, prefix) in [(mlp, ""), (deep, "deep."), (towers, "query."), (sequence, "")] {
        for refused in [
            format!("{prefix}pooling = \"max\""),
            format!("{prefix}pooling = \"max\"\n{prefix}embeddings.shops.dim = 3"),
            format!("{prefix}embeddings.all = {{ features = [\"shops\"], pooling = \"max\" }}"),
        ] {
            let error = job(&format!("{model}{refused}")).unwrap_err();
            let expected = "job.toml:11:1: error: feature `shops` has `weights`, which `pooling = \"max\"` does not \
                            use: remove them, or pool the feature by \"sum\", \"mean\" or \"sqrtn\"";
            assert!(error.contains(expected), "{refused}: {error}");
            assert_eq!(error.matches(": error: ").count(), 1, "{error}");
        }
        let by = |pooling: &str| {
            let keys = format!("{prefix}pooling = \"{pooling}\"\n{prefix}embeddings.shops.pooling = \"sum\"");
            job(&format!("{model}{keys}")).unwrap()
        };
        let allowed = by("max");
        let pooling = |name: &str| allowed.model.embeddings()[0].1.pooling_of(name).0;
        assert_eq!((pooling("seen"), pooling("shops")), (Pooling::Max, Pooling::Sum));
        // A run of one pooling is not resumed by a job of another.
        assert_ne!(allowed.fingerprint(), by("sum").fingerprint());
    }
    // Attention does not pool its history, whatever the pooling.
    let din = format!("{sequence}pooling = \"max\"").replace(", \"shops\"", "").replace("seen", "shops");
    let error = job(&din.replace("\"item\"", "\"shop\"")).unwrap_err();
    assert_eq!(error.matches(": error: ").count(), 1, "{error}");
    assert!(error.contains("feature `shops` has `weights`, which attention does not use"), "{error}");
}

const CLICKS: &str = r#"name = "clicks"
[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
[label]
column = "clicked"
[features]
item = { kind = "hashed", buckets = 100 }
shop = { kind = "hashed", buckets = 10 }
seen = { kind = "hashed", buckets = 100, multi = true, maximum = 20 }
shops = { kind = "hashed", buckets = 10, multi = true, maximum = 20, weights = "times" }
age = { kind = "numeric" }
[model]
kind = "din"
features = ["item", "seen", "shop", "shops", "age"]
"#;

fn din(text: &str) -> Result<DinSpec, String> {
    match Job::parse(&format!("{CLICKS}{text}"), Path::new("job.toml"), &[]) {
        Ok((Job { model: ModelSpec::Din(spec), .. }, _)) => Ok(spec),
        Ok((job, _)) => panic!("{:?}", job.model),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_history_shares_the_table_of_its_target() {
    let pair = "sequences = [{ history = \"seen\", target = \"item\" }]\n";
    let tables = |more: &str| {
        let tables = din(&format!("{pair}{more}")).unwrap().embedding.tables;
        tables.into_iter().map(|table| (table.name, table.features, table.dim)).collect::<Vec<_>>()
    };
    let both = |name: &str, dim: Option<u32>| {
        let features = ["item", "seen"].map(str::to_owned).to_vec();
        (name.to_owned(), features, dim.map(EmbeddingDim::Columns))
    };
    assert_eq!(tables(""), [both("item", None)]);
    assert_eq!(tables("embeddings.item.dim = 5"), [both("item", Some(5))]);
    assert_eq!(tables("embeddings.all = { features = [\"item\"] }"), [both("all", None)]);
    assert_eq!(tables("embeddings.all = { features = [\"item\", \"seen\"] }"), [both("all", None)]);
    let spec = din(&format!("{pair}attention.hidden = [5, 4]\nhidden = [7]")).unwrap();
    assert_eq!((spec.attention.hidden, spec.hidden), (vec![5, 4], vec![7]));
    assert_eq!(din(pair).unwrap().attention.hidden, [36]);
}

#[test]
fn invalid_sequences_are_reported_with_their_position() {
    let pair = |history: &str, target: &str| {
        format!("sequences = [{{ history = \"{history}\", target = \"{target}\" }}]")
    };
    let twice =
        "sequences = [{ history = \"seen\", target = \"item\" }, { history = \"seen\", target = \"item\" }]";
    let elsewhere = format!("{}\nembeddings.seen.dim = 3", pair("seen", "item"));
    for (text, expected) in [
        ("", "job.toml:13:1: error: [model] needs `sequences`"),
        ("sequences = []", "job.toml:16:13: error: at least one pair of a history and its target is needed"),
        (
            "sequences = [{ history = \"seen\" }]",
            "job.toml:16:14: error: a table of `sequences` needs `target`",
        ),
        (
            &pair("sen", "item"),
            "job.toml:16:26: error: `sen` is not a feature of the model; did you mean `seen`?",
        ),
        (twice, "job.toml:16:65: error: `seen` is the history of two sequences"),
        (
            &elsewhere,
            "job.toml:16:26: error: the history `seen` is in table `seen`, and its target `item` is not; they share \
             one: list both in `embeddings.seen.features`, or neither",
        ),
        (&pair("seen", "shop"), "job.toml:10:1: error: feature `seen` shares table `shop` with `shop`"),
        (&pair("item", "shop"), "job.toml:8:1: error: feature `item` has one id per row; a history needs"),
        (
            &pair("shops", "shop"),
            "job.toml:11:1: error: feature `shops` has `weights`, which attention does not",
        ),
        (&pair("seen", "shops"), "job.toml:11:1: error: feature `shops` has several ids per row; the target"),
        (&pair("seen", "age"), "job.toml:12:1: error: feature `age` has numbers; a target has ids"),
    ] {
        let error = din(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
