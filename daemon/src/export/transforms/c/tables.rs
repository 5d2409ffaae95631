//! The tables of the header: columns, boundaries, terms and the values that mean "missing".

use std::collections::BTreeSet;
use std::io::{self, Write};

use millstream_pipeline::analysis::{StoredType, StoredUnit};
use millstream_pipeline::spec::{FeatureKind, MissingNumber, OutOfRange};

use super::{Column, Feature, Header};
use crate::export::transforms::names::{comment, literal};
use crate::export::{cardinality, terms_of};

/// Compilers of C99 need not accept longer literals.
const MAX_LITERAL_BYTES: usize = 4000;

impl Header<'_> {
    /// The values that mean "missing".
    pub(super) fn missing(&self, out: &mut dyn Write) -> io::Result<()> {
        let p = self.p;
        let listed = &self.transforms.job.data.missing;
        let trimmed: Vec<&str> = listed.iter().map(|value| value.trim_ascii()).collect();
        let reals: Vec<f64> = trimmed.iter().filter_map(|value| value.parse().ok()).collect();
        let whole = reals.iter().filter(|real| real.fract() == 0.0 && real.abs() <= 2f64.powi(53));
        let integers = trimmed.iter().filter_map(|value| value.parse().ok());
        // Exact: whole and at most 2^53.
        let integers: BTreeSet<i128> = integers.chain(whole.map(|&real| real as i128)).collect();
        let negative =
            integers.iter().filter_map(|&value| i64::try_from(value).ok().filter(|&value| value < 0));
        let negative: Vec<String> = negative.map(|value| format!("-INT64_C({}) - 1", -(value + 1))).collect();
        let naturals = integers.iter().filter_map(|&value| u64::try_from(value).ok());
        let naturals: Vec<String> = naturals.map(|value| format!("UINT64_C({value})")).collect();
        let terms = |values: &mut dyn Iterator<Item = &str>| {
            values
                .map(|value| format!("{{{}, {}, 0}}", literal(value.as_bytes()), value.len()))
                .collect::<Vec<_>>()
        };
        let exact = terms(&mut listed.iter().map(String::as_str));
        let trimmed = terms(&mut trimmed.iter().copied());
        let real_texts: Vec<String> = reals.iter().map(|&real| double(real)).collect();
        let arrays = [
            ("term", "exact_missing", exact),
            ("term", "trimmed_missing", trimmed),
            ("int64_t", "missing_integers", negative),
            ("uint64_t", "missing_naturals", naturals),
            ("double", "missing_reals", real_texts),
        ];
        let mut members = Vec::new();
        for (kind, name, values) in &arrays {
            let kind = if *kind == "term" { format!("{p}_term") } else { (*kind).to_owned() };
            members.push(self.array(&kind, name, values, out)?);
            if *name != "exact_missing" {
                members.push(values.len().to_string());
            }
        }
        writeln!(out, "static const {p}_missing {p}_missing_of_job = {{{}}};\n", members.join(", "))?;
        let function = format!("static inline const {p}_missing *{p}_missing_values(void)");
        writeln!(out, "{function} {{ return &{p}_missing_of_job; }}\n")
    }

    /// Writes an array of constants. Returns its name, or `NULL` if it would be empty.
    fn array(&self, kind: &str, name: &str, values: &[String], out: &mut dyn Write) -> io::Result<String> {
        if values.is_empty() {
            return Ok("NULL".to_owned());
        }
        let name = format!("{}_{name}", self.p);
        writeln!(out, "static const {kind} {name}[] = {{")?;
        for value in values {
            writeln!(out, "    {value},")?;
        }
        writeln!(out, "}};")?;
        Ok(name)
    }

    /// The tables of a feature.
    pub(super) fn tables(&self, feature: &Feature<'_>, out: &mut dyn Write) -> io::Result<()> {
        let Self { p, upper, transforms } = self;
        let Feature { spec, name, .. } = feature;
        writeln!(out, "/* {} */", comment(&spec.name))?;
        let parts = self.parts(feature, out)?;
        let weights = match feature.weights {
            Some(column) => {
                let column = self.column(column);
                writeln!(out, "static const {p}_column {p}_weights_of_{name} = {column};")?;
                format!("&{p}_weights_of_{name}")
            }
            None => "NULL".to_owned(),
        };
        let (mut terms, mut term_count, mut size) = ("NULL".to_owned(), 0, spec.maximum.unwrap_or(0));
        let (mut is_missing_beyond, mut may_be_absent) = (false, true);
        let (kind, buckets) = match &spec.kind {
            FeatureKind::Numeric { missing, .. } => {
                may_be_absent = *missing != MissingNumber::Error;
                ("NUMBERS", 0)
            }
            FeatureKind::Vector { missing, size: of_vector } => {
                size = *of_vector;
                may_be_absent = *missing != MissingNumber::Error;
                ("NUMBERS", 0)
            }
            FeatureKind::Bucketized { .. } => ("BUCKETIZED", 0),
            FeatureKind::Vocabulary { terms: of_feature, oov_buckets } => {
                let found = terms_of(of_feature, transforms.analysis, &spec.name).unwrap_or_default();
                terms = self.terms(name, &found, out)?;
                term_count = found.len();
                ("VOCABULARY", *oov_buckets)
            }
            FeatureKind::Hashed { buckets } => ("HASHED", *buckets),
            FeatureKind::Identity { buckets, out_of_range } => {
                is_missing_beyond = *out_of_range == OutOfRange::Missing;
                ("IDENTITY", *buckets)
            }
            FeatureKind::Crossed { buckets, .. } => ("CROSSED", *buckets),
        };
        let absent = cardinality(&transforms.trained.snapshot.schema, &spec.name)
            .map_or(0, |ids| ids.saturating_sub(1));
        let scaling = transforms.scalings.get(&spec.name);
        let (logarithm, shift, divisor) =
            scaling.map_or((false, 0.0, 1.0), |scaling| (scaling.logarithm, scaling.shift, scaling.divisor));
        let members = [
            literal(spec.name.as_bytes()),
            format!("{upper}_{kind}"),
            format!("{parts}, {}", spec.columns.len()),
            weights,
            format!("{absent}, {buckets}, {is_missing_beyond}"),
            format!("{terms}, {term_count}, {size}"),
            format!("{logarithm}, {}, {}, {may_be_absent}", double(shift), double(divisor)),
        ];
        let members = members.join(",\n    ");
        writeln!(out, "static const {p}_feature {p}_feature_of_{name} = {{\n    {members}}};\n")
    }

    /// The columns of a feature with their boundaries. Returns the array's name.
    fn parts(&self, feature: &Feature<'_>, out: &mut dyn Write) -> io::Result<String> {
        let mut parts = Vec::with_capacity(feature.columns.len());
        for (place, column) in feature.columns.iter().enumerate() {
            let boundaries: &[f64] = match &feature.spec.kind {
                FeatureKind::Bucketized { boundaries } => boundaries,
                FeatureKind::Crossed { boundaries, .. } => boundaries.get(place).map_or(&[], Vec::as_slice),
                _ => &[],
            };
            let is_float32 = self.stored(column) == StoredType::Float32;
            let held =
                |&boundary: &f64| double(if is_float32 { f64::from(boundary as f32) } else { boundary });
            let held: Vec<String> = boundaries.iter().map(held).collect();
            let name = format!("boundaries_of_{}_{place}", feature.name);
            let array = self.array("double", &name, &held, out)?;
            parts.push(format!("{{{}, {array}, {}}}", self.column(column), held.len()));
        }
        self.array(&format!("{}_part", self.p), &format!("parts_of_{}", feature.name), &parts, out)
    }

    /// A column's constant.
    fn column(&self, column: &Column<'_>) -> String {
        let mut per_second = 1;
        let mut in_utc = false;
        let stored = match self.stored(column) {
            StoredType::Text => "TEXT",
            StoredType::Integer => "INTEGER",
            StoredType::Unsigned => "NATURAL",
            StoredType::Float32 => "FLOAT32",
            StoredType::Float64 => "FLOAT64",
            StoredType::Boolean => "BOOLEAN",
            StoredType::Date => "DATE",
            StoredType::Timestamp { unit, is_utc } => {
                in_utc = is_utc;
                per_second = match unit {
                    StoredUnit::Second => 1,
                    StoredUnit::Millisecond => 1000,
                    StoredUnit::Microsecond => 1_000_000,
                    StoredUnit::Nanosecond => 1_000_000_000,
                };
                "TIMESTAMP"
            }
        };
        let name = literal(column.name.as_bytes());
        format!("{{{name}, {}_STORED_{stored}, {per_second}, {in_utc}}}", self.upper)
    }

    /// The type of a column; as text if it is unknown.
    fn stored(&self, column: &Column<'_>) -> StoredType {
        self.transforms.analysis.stored_types.get(column.name).copied().unwrap_or(StoredType::Text)
    }

    /// The terms of a vocabulary, sorted by their bytes. Returns the array's name.
    fn terms(&self, feature: &str, terms: &[&[u8]], out: &mut dyn Write) -> io::Result<String> {
        let mut sorted: Vec<(&[u8], usize)> =
            terms.iter().enumerate().map(|(id, &term)| (term, id)).collect();
        sorted.sort_unstable();
        let mut values = Vec::with_capacity(sorted.len());
        for (term, id) in sorted {
            let text = if term.len() > MAX_LITERAL_BYTES {
                let bytes: Vec<String> = term.iter().map(|byte| format!("'\\{byte:03o}'")).collect();
                self.array("char", &format!("term_{id}_of_{feature}"), &bytes, out)?
            } else {
                literal(term)
            };
            values.push(format!("{{{text}, {}, {id}}}", term.len()));
        }
        self.array(&format!("{}_term", self.p), &format!("terms_of_{feature}"), &values, out)
    }
}

/// A constant of type double.
fn double(value: f64) -> String {
    if value.is_nan() {
        "(double)NAN".to_owned()
    } else if value.is_infinite() {
        format!("{}HUGE_VAL", if value < 0.0 { "-" } else { "" })
    } else {
        format!("{value:?}")
    }
}
