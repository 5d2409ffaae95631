//! The functions of the header: one per feature, and one from a row to its inputs.

use std::io::{self, Write};

use millstream_pipeline::spec::FeatureKind;

use super::{Column, Feature, Header, Inputs};
use crate::export::transforms::names::{Names, comment};

/// Names in functions, which columns must not have there.
const LOCAL_NAMES: [&str; 10] = [
    "error",
    "number",
    "numbers",
    "id",
    "ids",
    "count",
    "none",
    "values",
    "weights_of_ids",
    "weights_of_values",
];

impl Header<'_> {
    /// Writes the function of a feature, which passes its table and the values to a function of the template.
    pub(super) fn function(&self, feature: &Feature<'_>, out: &mut dyn Write) -> io::Result<()> {
        let Self { p, upper, .. } = self;
        let Feature { spec, name, weights, .. } = feature;
        let columns: Vec<&str> = feature.columns.iter().map(|column| column.name).collect();
        let columns = Names::reserving(&LOCAL_NAMES).of(&columns);
        let kind = if feature.is_list() { "values" } else { "value" };
        let mut parameters: Vec<String> =
            columns.iter().map(|column| format!("{p}_{kind} {column}")).collect();
        let all = columns.join(", ");
        let is_cross = matches!(spec.kind, FeatureKind::Crossed { .. });
        let mut body = String::new();
        if is_cross {
            body = format!("    const {p}_{kind} values[] = {{{all}}};\n");
        }
        let given = match (is_cross, feature.is_list()) {
            (true, _) => "values".to_owned(),
            (false, true) => all,
            (false, false) => format!("&{all}"),
        };
        let (what, function, found) = match (&spec.kind, spec.maximum) {
            (FeatureKind::Numeric { .. }, _) => {
                parameters.push("double *number".to_owned());
                ("number", "number_of", "number")
            }
            (FeatureKind::Vector { size, .. }, _) => {
                writeln!(out, "#define {upper}_SIZE_OF_{name} {size}\n")?;
                parameters.push(format!("double numbers[{upper}_SIZE_OF_{name}]"));
                ("numbers", "numbers_of", "numbers")
            }
            (_, None) => {
                parameters.push("int64_t *id".to_owned());
                ("id", "id_of", "id")
            }
            (_, Some(maximum)) => {
                writeln!(out, "/* The most ids of {}. */", comment(&spec.name))?;
                writeln!(out, "#define {upper}_MAXIMUM_OF_{name} {maximum}\n")?;
                if weights.is_some() {
                    parameters.push(format!("{p}_values weights_of_values"));
                }
                parameters.push("int64_t *ids".to_owned());
                if weights.is_some() {
                    parameters.push("float *weights_of_ids".to_owned());
                }
                parameters.push("size_t *count".to_owned());
                match (is_cross, weights) {
                    (true, _) => ("ids", "crossed_ids_of", "ids, count"),
                    (false, Some(_)) => ("ids", "ids_of", "weights_of_values, ids, weights_of_ids, count"),
                    (false, None) => {
                        body += &format!("    const {p}_values none = {{NULL, 0}};\n");
                        ("ids", "ids_of", "none, ids, NULL, count")
                    }
                }
            }
        };
        let parameters = parameters.join(", ");
        writeln!(out, "/* The {what} of {}. */", comment(&spec.name))?;
        writeln!(out, "static inline bool {p}_{what}_of_{name}({parameters}, {p}_error *error) {{")?;
        writeln!(
            out,
            "{body}    return {p}_{function}(&{p}_feature_of_{name}, {given}, {found}, error);\n}}\n"
        )
    }

    /// Writes the row, the inputs, and the function from one to the other.
    pub(super) fn row(
        &self,
        columns: &[Column<'_>],
        features: &[Feature<'_>],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let p = self.p;
        writeln!(out, "/* A row: the values of its columns. Zeros mean absent ones. */\ntypedef struct {{")?;
        for Column { name, member, is_list } in columns {
            let kind = if *is_list { "values" } else { "value" };
            writeln!(out, "    {p}_{kind} {member}; /* {} */", comment(name))?;
        }
        writeln!(out, "}} {p}_row;\n")?;
        writeln!(
            out,
            "/* The inputs of the model for a row. The caller provides the room for the ids of multi-valued"
        )?;
        writeln!(
            out,
            " * features, such as a row of a tensor; a tensor pads them with -1. */\ntypedef struct {{"
        )?;
        for feature in features {
            self.members(feature, out)?;
        }
        writeln!(out, "}} {p}_inputs;\n\n/* Computes the inputs of a row. */")?;
        let parameters = format!("const {p}_row *row, {p}_inputs *inputs, {p}_error *error");
        writeln!(out, "static inline bool {p}_transform({parameters}) {{")?;
        for feature in features {
            self.call(feature, out)?;
        }
        writeln!(out, "    return true;\n}}")
    }

    /// The members of the inputs that a feature fills.
    fn members(&self, feature: &Feature<'_>, out: &mut dyn Write) -> io::Result<()> {
        let upper = self.upper;
        let Feature { spec, name, inputs: Inputs { values, count, weights }, .. } = feature;
        let about = comment(&spec.name);
        match (&spec.kind, spec.maximum) {
            (FeatureKind::Numeric { .. }, _) => writeln!(out, "    double {values}; /* {about} */"),
            (FeatureKind::Vector { .. }, _) => {
                writeln!(out, "    double {values}[{upper}_SIZE_OF_{name}]; /* {about} */")
            }
            (_, None) => writeln!(out, "    int64_t {values}; /* {about} */"),
            (_, Some(_)) => {
                let room = format!("room for {upper}_MAXIMUM_OF_{name}");
                writeln!(out, "    int64_t *{values}; /* {about}, {room} */\n    size_t {count};")?;
                if feature.weights.is_some() {
                    writeln!(out, "    float *{weights}; /* {room} */")?;
                }
                Ok(())
            }
        }
    }

    /// The statements that compute the inputs of a feature.
    fn call(&self, feature: &Feature<'_>, out: &mut dyn Write) -> io::Result<()> {
        let p = self.p;
        let Feature { spec, name, columns, weights, inputs } = feature;
        let values = &inputs.values;
        let mut given: Vec<String> = columns.iter().map(|column| format!("row->{}", column.member)).collect();
        let (what, found) = match (&spec.kind, spec.maximum) {
            (FeatureKind::Numeric { .. }, _) => ("number", format!("&inputs->{values}")),
            (FeatureKind::Vector { .. }, _) => ("numbers", format!("inputs->{values}")),
            (_, None) => ("id", format!("&inputs->{values}")),
            (_, Some(_)) => {
                let count = format!("&inputs->{}", inputs.count);
                match weights {
                    Some(column) => {
                        given.push(format!("row->{}", column.member));
                        ("ids", format!("inputs->{values}, inputs->{}, {count}", inputs.weights))
                    }
                    None => ("ids", format!("inputs->{values}, {count}")),
                }
            }
        };
        let lists = columns.iter().enumerate().filter(|(_, column)| column.is_list && !feature.is_list());
        let lists: Vec<_> = lists.collect();
        let indent = if lists.is_empty() { "    " } else { "        " };
        if !lists.is_empty() {
            writeln!(out, "    {{")?;
        }
        for (place, column) in &lists {
            given[*place] = format!("value_{place}");
            let only =
                format!("&{p}_feature_of_{name}, {place}, row->{}, &value_{place}, error", column.member);
            writeln!(out, "{indent}{p}_value value_{place};\n{indent}if (!{p}_only({only})) return false;")?;
        }
        let given = given.join(", ");
        writeln!(out, "{indent}if (!{p}_{what}_of_{name}({given}, {found}, error)) return false;")?;
        if !lists.is_empty() {
            writeln!(out, "    }}")?;
        }
        Ok(())
    }
}
