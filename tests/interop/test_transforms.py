"""The features that `millstream export --transforms` writes compute the inputs of an exported model as `predict` does.

Rows are JSON lines, valid ones and ones with a value of any kind in any column. The exported code must accept the rows
that `predict` accepts, and refuse the others. Scores of onnxruntime with its inputs must equal those of `predict`; each
id has a separate embedding, so that a different id changes the score.
"""

import datetime
import importlib.util
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import unittest

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq

from support import ROOT, WithoutDaemon, millstream

TRAIN_ROWS, ROWS = 2048, 4000
TOLERANCE = 1e-6
MISSING = ["?", " n/a ", "-1", "0.1", "NaN", "true"]
COLOURS = ["red", "", "007", "ünï", "it's \"quoted\" ??/ \\\\ \n", "4.5", "😀"]
# Not UTF-8, and longer than a literal of C may be.
BLOBS = [b"\xff\x00?\xfe", b"\xc3", bytes(range(256)) * 20]
BOUNDARIES = [-1000.5, 0.1, 0.3, 18, 1e10]
UTC = datetime.timezone.utc

# Columns by name, with the types in which the training data stores them.
LISTS = {"tags": pa.string(), "marks": pa.int64(), "weights": pa.float32(), "image": pa.float32(), "steps": pa.float64()}
COLUMNS = {
    "colour": pa.string(),
    "blob": pa.binary(),
    "count": pa.int64(),
    "big": pa.uint64(),
    "small": pa.float32(),
    "real": pa.float64(),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "moment": pa.timestamp("us", "UTC"),
    "second": pa.timestamp("s"),
    "place": pa.int32(),
    "largest": pa.uint8(),
    "whole": pa.float64(),
    "spelled": pa.string(),
    # Without extremes, before which nothing else would change a score.
    "calm": pa.float32(),
    "flat": pa.float64(),
    "needed": pa.float64(),
    # Two files store it as integers and as floats, so its type is unknown.
    "mixed": pa.int64(),
    "int": pa.string(),
    "größe in cm": pa.float32(),
    **{name: pa.list_(kind) for name, kind in LISTS.items()},
}

FEATURES = f"""
calm = {{ kind = "numeric", missing = 0.5 }}
calm_score = {{ kind = "numeric", column = "calm", normalize = "zscore", missing = "mean" }}
calm_range = {{ kind = "numeric", column = "calm", normalize = "minmax", missing = 0 }}
flat = {{ kind = "numeric", normalize = "zscore", missing = 3 }}
small = {{ kind = "numeric", normalize = "log1p", missing = 0.5 }}
real = {{ kind = "numeric", normalize = "log1p_zscore", missing = "mean" }}
count_log = {{ kind = "numeric", column = "count", normalize = "log1p", missing = -3 }}
big = {{ kind = "numeric", normalize = "minmax", missing = "mean" }}
flag = {{ kind = "numeric", missing = 0 }}
day = {{ kind = "numeric", normalize = "minmax", missing = 0 }}
moment = {{ kind = "numeric", normalize = "log1p_zscore", missing = "mean" }}
needed = {{ kind = "numeric" }}
text_number = {{ kind = "numeric", column = "int", normalize = "log1p", missing = 1 }}
image = {{ kind = "vector", size = 3, missing = 0.25 }}
small_bucket = {{ kind = "bucketized", column = "small", boundaries = {BOUNDARIES} }}
real_bucket = {{ kind = "bucketized", column = "real", boundaries = {BOUNDARIES} }}
count_bucket = {{ kind = "bucketized", column = "count", boundaries = {BOUNDARIES} }}
mixed_bucket = {{ kind = "bucketized", column = "mixed", boundaries = {BOUNDARIES} }}
"größe in cm" = {{ kind = "bucketized", boundaries = {BOUNDARIES} }}
"größe-in-cm" = {{ kind = "bucketized", column = "größe in cm", boundaries = [1, 2] }}
colour = {{ kind = "vocabulary", terms = {json.dumps(COLOURS, ensure_ascii=False)}, oov_buckets = 7 }}
colour_learned = {{ kind = "vocabulary", column = "colour", max_terms = 20, oov_buckets = 3 }}
blob_learned = {{ kind = "vocabulary", column = "blob" }}
count_learned = {{ kind = "vocabulary", column = "count", max_terms = 30 }}
small_learned = {{ kind = "vocabulary", column = "small", max_terms = 30 }}
colour_hash = {{ kind = "hashed", column = "colour", buckets = 1000 }}
blob_hash = {{ kind = "hashed", column = "blob", buckets = 1000 }}
count_hash = {{ kind = "hashed", column = "count", buckets = 1000 }}
big_hash = {{ kind = "hashed", column = "big", buckets = 1000 }}
small_hash = {{ kind = "hashed", column = "small", buckets = 1000 }}
real_hash = {{ kind = "hashed", column = "real", buckets = 1000 }}
flag_hash = {{ kind = "hashed", column = "flag", buckets = 1000 }}
day_hash = {{ kind = "hashed", column = "day", buckets = 1000 }}
moment_hash = {{ kind = "hashed", column = "moment", buckets = 1000 }}
second_hash = {{ kind = "hashed", column = "second", buckets = 1000 }}
mixed_hash = {{ kind = "hashed", column = "mixed", buckets = 1000 }}
int = {{ kind = "hashed", buckets = 1000 }}
place = {{ kind = "identity", buckets = 50, out_of_range = "missing" }}
largest = {{ kind = "identity", buckets = 256 }}
spelled = {{ kind = "identity", buckets = 100 }}
whole = {{ kind = "identity", buckets = 2000, out_of_range = "missing" }}
colour_count = {{ kind = "crossed", columns = ["colour", "count"], buckets = 5000 }}
colour_small = {{ kind = "crossed", columns = ["colour", "small_bucket", "flag_hash"], buckets = 5000 }}
tags = {{ kind = "hashed", buckets = 1000, multi = true, maximum = 3 }}
tags_learned = {{ kind = "vocabulary", column = "tags", multi = true, maximum = 2, oov_buckets = 2 }}
marks = {{ kind = "identity", buckets = 40, out_of_range = "missing", multi = true, maximum = 4, weights = "weights" }}
marks_weights = {{ kind = "hashed", column = "marks", buckets = 100, multi = true, maximum = 9, weights = "weights" }}
steps = {{ kind = "bucketized", boundaries = {BOUNDARIES}, multi = true, maximum = 5 }}
tags_marks = {{ kind = "crossed", columns = ["tags", "marks", "colour"], buckets = 5000, multi = true, maximum = 6 }}
steps_tags = {{ kind = "crossed", columns = ["steps", "tags"], buckets = 5000, multi = true, maximum = 100 }}
"""
NAMES = [line.split(" = ")[0].strip('"') for line in FEATURES.strip().splitlines()]

JOB = f"""name = "every-kind"
seed = 3
[data]
train = ["train-*.parquet"]
batch_size = 256
missing = {json.dumps(MISSING)}
[label]
column = "label"
[features]{FEATURES}
[model]
kind = "mlp"
features = {json.dumps(NAMES, ensure_ascii=False)}
embedding_dim = 4
hidden = [16]
[training]
threads = 1
[checkpoint]
directory = "checkpoints"
"""


def of_float32(number: float) -> float:
    return float(np.float32(number))


def any_text(draw: random.Random) -> str:
    """Text of 0 to 300 bytes, of which some mean something else elsewhere."""
    kind = draw.randrange(6)
    if kind == 0:
        return draw.choice(COLOURS + ["?", " ? ", "n/a", " n/a ", "-1", "NaN", "nan", "0.1", " 7", "+7", "1e3", "inf", "true", ".5", "5."])
    if kind == 1:
        return str(draw.randrange(-(10 ** draw.randrange(1, 20)), 10 ** draw.randrange(1, 20)))
    if kind == 2:
        return repr(draw.uniform(-1, 1) * 10 ** draw.randrange(-20, 20))
    if kind == 3:
        return "".join(draw.choice("aé漢😀\t 0\u202e") for _ in range(draw.randrange(1, 40)))
    return "".join(chr(draw.randrange(32, 127)) for _ in range(draw.randrange(0, 301)))


def any_integer(draw: random.Random) -> int:
    if draw.random() < 0.2:
        return draw.choice([0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), -(2**63) + 1, 10**18])
    return draw.randrange(-(2 ** draw.randrange(1, 63)), 2 ** draw.randrange(1, 63))


def any_float(draw: random.Random) -> float:
    kind = draw.randrange(7)
    if kind == 5:
        # In the middle between two shorter decimal numbers.
        return draw.randrange(2**51, 2**53) / 4
    if kind == 6:
        return draw.randrange(2**22, 2**24) / 2 ** draw.randrange(1, 30)
    if kind == 0:
        return draw.choice([0.0, -0.0, 0.1, -1.0, 0.3, 18.0, 5e-324, 1e-5, 1e-6, 1e15, 1e16, 1e22, 123456789012345680.0, 2.0**89])
    if kind == 1:
        return float(draw.randrange(-1000, 1000)) / draw.choice([1, 2, 10])
    if kind == 2:
        return math.ldexp(1.0, draw.randrange(-1074, 1023))
    if kind == 3:
        (number,) = struct.unpack("<d", draw.randbytes(8))
        return number if math.isfinite(number) else 0.5
    return draw.gauss(0, 100)


def value_of(name: str, draw: random.Random):
    """A value that suits a column, of the types of JSON; None for an absent one."""
    if draw.random() < 0.08:
        return None
    if name == "flat":
        return 3.5
    if name == "image":
        return draw.gauss(0, 1)
    kind = LISTS.get(name, COLUMNS[name])
    if name in ("needed", "calm"):
        return draw.gauss(0, 1)
    if name == "place":
        return draw.randrange(-5, 60)
    if name == "whole":
        return draw.choice([float(draw.randrange(-50, 2050)), -0.0, 1e300, -1e22])
    if name == "spelled":
        return draw.choice(["7", "07", " 42 ", "+3", "99", "1e1", "5.0", "-0", "?"])
    if name == "largest":
        return draw.randrange(256)
    if name == "marks":
        return draw.randrange(-5, 45)
    if name == "weights":
        return draw.choice([-0.5, 0.25, 1.0, 3.5])
    if name == "int":
        return draw.choice(["5", "-3.5", "+7", " 12 ", "1e3", ".5", "5.", "?", " ? ", "9007199254740993", "1e-320"])
    if name == "mixed":
        return draw.choice([any_integer(draw), str(draw.randrange(99)), 1.5, 2.0, 1e-5, 1e-6, 1e16, 1e22, True])
    if kind == pa.string():
        return any_text(draw)
    if kind == pa.binary():
        return draw.choice(["a", "bc", "ü", "0", any_text(draw)])
    if kind == pa.int64():
        return draw.choice([any_integer(draw), draw.randrange(30)])
    if kind == pa.uint64():
        return draw.choice([draw.randrange(2**64), draw.randrange(30), 2**64 - 1])
    if kind == pa.float32():
        number = draw.choice([any_float(draw), draw.gauss(0, 5), float(draw.randrange(20)) / 10])
        return number if abs(number) < 1e38 else 0.1
    if kind == pa.float64():
        number = any_float(draw)
        return number if abs(number) < 1e38 else 0.1
    if kind == pa.bool_():
        return draw.random() < 0.5
    if kind == pa.date32():
        return datetime.date.fromordinal(draw.randrange(1, 3_652_060)).isoformat()
    moment = datetime.datetime.fromordinal(draw.randrange(600_000, 800_000)) + datetime.timedelta(seconds=draw.randrange(86400))
    micros = draw.choice(["", f".{draw.randrange(1000):03d}", f".{draw.randrange(10**6):06d}"])
    return moment.isoformat() + micros + draw.choice(["Z", "+05:30", "-11:00", ""])


def row_of(draw: random.Random) -> dict:
    """A row that `predict` accepts."""
    row = {name: value_of(name, draw) for name in COLUMNS if name not in LISTS}
    if row["needed"] is None:
        row["needed"] = 0.5
    for name in ["tags", "steps"]:
        row[name] = [value_of(name, draw) for _ in range(draw.choice([0, 1, 2, 3, 8]))]
        if row[name] and draw.random() < 0.3:
            row[name].append(row[name][0])
    row["marks"] = [value_of("marks", draw) for _ in range(draw.choice([0, 1, 3, 5, 12]))]
    row["weights"] = [draw.choice([-0.5, 0.25, 1.0, 3.5]) for _ in row["marks"]]
    row["image"] = draw.choice([[], [value_of("image", draw) for _ in range(3)], [1.5, None, -2.0]])
    return {name: value for name, value in row.items() if value is not None or draw.random() < 0.5}


def spoiled(row: dict, draw: random.Random) -> dict:
    """The row with a value of any kind in a column."""
    scalars = [
        lambda: any_text(draw),
        lambda: any_integer(draw),
        lambda: any_float(draw),
        lambda: draw.randrange(2**63, 2**65),
        lambda: 1e300,
        lambda: draw.choice([True, False, None, "", "?", "3.0", 3.0, "yes", "F", "2026-02-30", "0000-01-01", "2026-11-21"]),
        lambda: draw.choice(["1.00000005960464477539062500001", "3.4028235677973366e38", "3.4028235677973367e38", "1e-46"]),
        lambda: draw.choice(["9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551615", "-0"]),
    ]
    name = draw.choice(list(COLUMNS))
    row = dict(row)
    if name in ("calm", "needed", "image"):
        number = lambda: draw.choice([True, None, "x", "-1.5", 0.25, 1e39, "3.4028235677973367e38"])
        row[name] = draw.choice([number(), [number() for _ in range(draw.randrange(5))]])
    elif name in ("day", "moment", "second"):
        # Not all spellings of predict: the exported code refuses some.
        row[name] = draw.choice([5, -5, "7", 1.5, True, "", "x", "2026-02-29", "2024-02-29", "2026-11-21 12:38", "2026/11/21", 2**62, []])
    elif draw.random() < 0.7:
        row[name] = draw.choice(scalars)()
    else:
        row[name] = [draw.choice(scalars)() for _ in range(draw.randrange(6))]
    return row


def stored(row: dict, name: str):
    """The value of a row as Parquet stores it."""
    value = row.get(name)
    if value is None:
        return None
    if name == "blob":
        return value if isinstance(value, bytes) else value.encode()
    if name == "day":
        return datetime.date.fromisoformat(value)
    if name in ("moment", "second"):
        moment = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC) if name == "moment" else moment.astimezone(UTC).replace(tzinfo=None, microsecond=0)
    return value


def table(rows: list, mixed: pa.DataType) -> pa.Table:
    """Rows in the types of the training data, with the column `mixed` of this type."""
    columns = {name: [stored(row, name) for row in rows] for name in COLUMNS}
    of_mixed = float if mixed == pa.float64() else int
    columns["mixed"] = [value if type(value) is of_mixed else None for value in columns["mixed"]]
    return pa.table({name: pa.array(columns[name], kind) for name, kind in (COLUMNS | {"mixed": mixed}).items()})


def load(path: pathlib.Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_lines(path: pathlib.Path, rows: list) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# Where the names of features and columns are no identifiers, or are taken.
NAMED = {"größe in cm": "gr_e_in_cm", "größe-in-cm": "gr_e_in_cm_2", "int": "n_int"}
WEIGHTS = {"marks": "marks_weights_2", "marks_weights": "marks_weights_weights"}
# Columns of multi-valued features: a cross makes one of a column with one value per row.
LISTED = {*LISTS, "colour"}
C_FLAGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
# Reads rows of tagged values from standard input, and prints the inputs of each, or its error.
PROGRAM = """
#include <inttypes.h>
#include "features.h"
#include "item.h"

static every_kind_value read_value(char **room) {
    char kind = 0;
    uint64_t bits = 0;
    double real;
    char *text;
    if (scanf(" %c", &kind) != 1) exit(3);
    if (kind == 'x') return every_kind_absent();
    if (scanf("%" SCNx64, &bits) != 1) exit(3);
    if (kind == 'b') return every_kind_boolean(bits == 1);
    if (kind == 'i') return every_kind_integer((int64_t)bits);
    if (kind == 'n') return every_kind_natural(bits);
    if (kind == 'r') {
        memcpy(&real, &bits, sizeof real);
        return every_kind_real(real);
    }
    /* Of this size, so that reading beyond the end is noticed. */
    text = (char *)malloc(bits);
    *room = text;
    for (uint64_t at = 0; at < bits; at++) {
        unsigned byte = 0;
        if (scanf("%2x", &byte) != 1) exit(3);
        text[at] = (char)byte;
    }
    return every_kind_text(text, (size_t)bits);
}

static void print_number(double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    printf("%016" PRIx64 " ", bits);
}

int main(void) {
    size_t rows = 0;
    if (scanf("%zu", &rows) != 1) return 3;
    while (rows-- > 0) {
        every_kind_row row;
        every_kind_inputs inputs;
        every_kind_error error;
        char *texts[COLUMNS][LONGEST] = {{0}};
        every_kind_value values[COLUMNS][LONGEST];
        size_t counts[COLUMNS];
        int64_t ids[FEATURES][LARGEST];
        float weights[FEATURES][LARGEST];
        memset(&row, 0, sizeof row);
        memset(&inputs, 0, sizeof inputs);
        for (size_t column = 0; column < COLUMNS; column++) {
            if (scanf("%zu", &counts[column]) != 1) return 3;
            for (size_t at = 0; at < counts[column]; at++) values[column][at] = read_value(&texts[column][at]);
        }
SET
        if (every_kind_transform(&row, &inputs, &error)) {
PRINT
        } else {
            for (const char *at = error.message; *at != 0; at++) putchar(*at == '\\n' ? ' ' : *at);
        }
        putchar('\\n');
        for (size_t column = 0; column < COLUMNS; column++) {
            for (size_t at = 0; at < LONGEST; at++) free(texts[column][at]);
        }
    }
    return 0;
}
"""
LONGEST, LARGEST = 16, 100


def program() -> str:
    """The program, with the columns and features of the job."""
    setting, printing = [], []
    for place, name in enumerate(COLUMNS):
        member = f"row.{NAMED.get(name, name)}"
        if name in LISTED:
            setting += [f"{member}.values = values[{place}];", f"{member}.count = counts[{place}];"]
        else:
            setting.append(f"{member} = values[{place}][0];")
    for place, line in enumerate(FEATURES.strip().splitlines()):
        name = NAMED.get(NAMES[place], NAMES[place])
        if "multi = true" in line:
            setting.append(f"inputs.{name} = ids[{place}];")
            loop = f"for (size_t at = 0; at < inputs.{name}_count; at++)"
            printing.append(f'printf("%zu ", inputs.{name}_count);')
            printing.append(f'{loop} printf("%" PRId64 " ", inputs.{name}[at]);')
            if name in WEIGHTS:
                setting.append(f"inputs.{WEIGHTS[name]} = weights[{place}];")
                printing.append(f"{loop} print_number((double)inputs.{WEIGHTS[name]}[at]);")
        elif '"numeric"' in line:
            printing.append(f"print_number(inputs.{name});")
        elif '"vector"' in line:
            printing.append(f"for (size_t at = 0; at < EVERY_KIND_SIZE_OF_{name}; at++) print_number(inputs.{name}[at]);")
        else:
            printing.append(f'printf("%" PRId64 " ", inputs.{name});')
    text = PROGRAM.replace("SET", "\n".join(setting)).replace("PRINT", "\n".join(printing))
    for name, number in [("LONGEST", LONGEST), ("LARGEST", LARGEST), ("FEATURES", len(NAMES)), ("COLUMNS", len(COLUMNS))]:
        text = text.replace(f"[{name}]", f"[{number}]").replace(f"< {name}", f"< {number}")
    return text


def bits_of(number: float) -> str:
    return struct.pack(">d", number).hex()


def tagged(value) -> str:
    """A value as the program reads it."""
    if value is None:
        return "x"
    if isinstance(value, bool):
        return f"b {value:x}"
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return f"{'i' if value < 2**63 else 'n'} {value % 2**64:x}"
    if isinstance(value, (int, float)):
        return f"r {bits_of(float(value))}"
    text = value if isinstance(value, bytes) else value.encode()
    return f"t {len(text):x} {text.hex()}"


def tagged_row(row: dict) -> str:
    fields = []
    for name in COLUMNS:
        value = row.get(name)
        is_missing = value is None or (name in LISTED and isinstance(value, str) and value in MISSING)
        values = value if isinstance(value, list) else ([] if is_missing else [value])
        if name not in LISTED and not values:
            values = [None]
        fields.append(" ".join([str(len(values)), *map(tagged, values)]))
    return " ".join(fields)


def is_for_c(row: dict) -> bool:
    """Whether the values of a row can be passed to the program as they are in Python."""
    for name in COLUMNS:
        value = row.get(name)
        # One value per row has no list in C, and text that means "missing" is absent in all lists.
        if isinstance(value, list) and (name not in LISTED and value or any(isinstance(of, str) and of in MISSING for of in value)):
            return False
    return True


class Transforms(WithoutDaemon):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        draw = random.Random(1)
        rows = [row_of(draw) for _ in range(TRAIN_ROWS)]
        for row in rows[::10]:
            row["blob"] = draw.choice(BLOBS)
        for part, mixed in enumerate([pa.int64(), pa.float64()]):
            label = pa.array([draw.randrange(2) for _ in rows[part::2]])
            file = cls.scratch / f"train-{part}.parquet"
            pq.write_table(table(rows[part::2], mixed).append_column("label", label), file)
        (cls.scratch / "job.toml").write_text(JOB)
        cls.checkpoint = millstream("train", cls.scratch / "job.toml")["checkpoint"]
        outputs = ["--output", cls.scratch / "model.onnx"]
        for name in ["features.py", "features.h"]:
            outputs += ["--transforms", cls.scratch / name]
        cls.report = millstream("export", cls.checkpoint, *outputs)
        cls.module = load(cls.scratch / "features.py", "features")
        cls.session = onnxruntime.InferenceSession(cls.scratch / "model.onnx", providers=["CPUExecutionProvider"])

    def predicted(self, file: pathlib.Path) -> dict:
        """The scores of rows that can be used, by their column `row`."""
        output = self.scratch / "scores.parquet"
        millstream("predict", self.checkpoint, file, "--skip-bad-lines", "--keep", "row", "--output", output)
        scores = pq.read_table(output)
        return {int(row): score for row, score in zip(scores["row"].to_pylist(), scores["score"].to_pylist())}

    def accepted(self, rows: list) -> list:
        """The rows that the exported module accepts."""
        places = []
        for place, row in enumerate(rows):
            try:
                self.module.transform_to_lists([row])
                places.append(place)
            except self.module.FeatureError as error:
                self.assertIn(f"feature `{error.feature}`, column `{error.column}`", str(error))
        return places

    def compare(self, rows: list, scores: dict) -> None:
        """Compares which rows are accepted, and their scores."""
        places = self.accepted(rows)
        for place in set(places) ^ set(scores):
            self.fail(f"row {place}, accepted by {'the module' if place in places else 'predict'}: {rows[place]}")
        inputs = self.module.transform([rows[place] for place in places])
        self.assertEqual(set(inputs), {port.name for port in self.session.get_inputs()})
        (found,) = self.session.run(["score"], inputs)
        expected = np.array([scores[place] for place in places])
        off = np.abs(found - expected)
        print(f"{len(rows)} rows, {len(places)} accepted: off by {off.max():.1e} at most")
        worst = int(off.argmax())
        self.assertLessEqual(off[worst], TOLERANCE, rows[places[worst]])

    def test_rows_of_json_lines_have_the_scores_of_predict(self):
        draw = random.Random(2)
        rows = [row_of(draw) for _ in range(ROWS)]
        write_lines(self.scratch / "rows.jsonl", [dict(row, row=place) for place, row in enumerate(rows)])
        scores = self.predicted(self.scratch / "rows.jsonl")
        self.assertEqual(len(scores), ROWS)
        self.compare(rows, scores)

    def test_values_that_predict_refuses_are_refused(self):
        draw = random.Random(4)
        rows = [spoiled(row_of(draw), draw) for _ in range(2 * ROWS)]
        write_lines(self.scratch / "spoiled.jsonl", [dict(row, row=place) for place, row in enumerate(rows)])
        scores = self.predicted(self.scratch / "spoiled.jsonl")
        self.assertGreater(len(scores), ROWS // 2)
        self.assertGreater(len(rows) - len(scores), ROWS // 2)
        self.compare(rows, scores)

    def test_the_header_computes_what_the_module_does(self):
        self.export_tower("item.h")
        draw = random.Random(6)
        rows = [row_of(draw) for _ in range(1000)] + [spoiled(row_of(draw), draw) for _ in range(4000)]
        rows = [row for row in rows if is_for_c(row)]
        for row in rows[::10]:
            row["blob"] = draw.choice([*BLOBS, draw.randbytes(draw.randrange(300))])
        for row in rows[::7]:
            row["small"], row["real"] = draw.choice([(math.nan, 1.5), (0.25, math.nan), (math.inf, 1.5), (0.25, -math.inf)])
        self.assertGreater(len(rows), 3000)
        refused = 0
        for line, row in zip(self.of_c(rows), rows, strict=True):
            try:
                inputs = self.module.transform_to_lists([row])
            except self.module.FeatureError as error:
                refused += 1
                self.assertIn(f"column `{error.column}`", line, row)
                continue
            self.assertEqual(line.split(), self.printed(inputs), row)
        self.assertGreater(refused, 200)

    def printed(self, inputs: dict) -> list:
        """The inputs of one row, as the program prints them."""
        fields = []
        for name, line in zip(NAMES, FEATURES.strip().splitlines()):
            (values,) = inputs[name]
            if '"numeric"' in line or '"vector"' in line:
                fields += [bits_of(number) if number == number else bits_of(math.nan) for number in values]
                continue
            fields += [str(len(values))] if "multi = true" in line else []
            fields += map(str, values)
            if "weights = " in line:
                input = {feature["name"]: feature["weights_input"] for feature in self.described()}[name]
                fields += map(bits_of, inputs[input][0])
        return fields

    def described(self) -> list:
        return json.loads(self.session.get_modelmeta().custom_metadata_map["millstream.features"])

    def of_c(self, rows: list) -> list:
        """What the program prints for each row."""
        (self.scratch / "program.c").write_text(program())
        sanitized = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        self.compile("gcc", "-std=c99", *sanitized, "program.c", "-o", "program", "-lm")
        lines = "\n".join([str(len(rows)), *map(tagged_row, rows)])
        done = subprocess.run([self.scratch / "program"], input=lines.encode(), capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout.decode(errors="replace").removesuffix("\n").split("\n")

    def compile(self, compiler: str, *arguments: str) -> None:
        """Fails if the compiler is missing or warns."""
        done = subprocess.run([compiler, *C_FLAGS, *arguments], cwd=self.scratch, capture_output=True, text=True)
        self.assertTrue(done.returncode == 0 and not done.stderr, done.stderr)

    def export_tower(self, *names: str) -> None:
        """Exports the features of a tower, without its model."""
        job = JOB.split("[model]")[0].replace("every-kind", "two.towers")
        job += """[model]
kind = "two_tower"
query.features = ["small", "colour_hash"]
item.features = ["tags", "day_hash"]
dim = 4
item_id = "day_hash"
[checkpoint]
directory = "towers"
"""
        (self.scratch / "towers.toml").write_text(job)
        checkpoint = millstream("train", self.scratch / "towers.toml")["checkpoint"]
        transforms = [argument for name in names for argument in ["--transforms", self.scratch / name]]
        report = millstream("export", checkpoint, "--part", "item", *transforms)
        self.assertEqual((report["output"], report["part"]), (None, "item"))

    def test_the_header_compiles_without_warnings(self):
        self.export_tower("item.h", "item.py")
        (self.scratch / "plain.c").write_text('#include "item.h"\nint main(void) { return 0; }\n')
        (self.scratch / "program.c").write_text(program())
        for file in ["plain.c", "program.c"]:
            for optimised in ["-O0", "-O2"]:
                self.compile("gcc", "-std=c99", optimised, file, "-o", "compiled", "-lm")
                self.compile("g++", "-std=c++17", optimised, "-x", "c++", file, "-o", "compiled", "-lm")
        item = load(self.scratch / "item.py", "item")
        self.assertEqual(item.COLUMNS, ["day", "tags"])
        self.assertEqual(set(item.transform([{"day": "2026-11-21"}])), {"day_hash", "tags"})

    def test_fingerprints_equal_those_of_tensorflow(self):
        golden = json.loads((ROOT / "pipeline" / "tests" / "golden" / "fingerprint64.json").read_text())["single"]
        self.assertGreater(len(golden), 100)
        for case in golden:
            self.assertEqual(self.module.fingerprint64(bytes.fromhex(case["hex"])), int(case["fingerprint"]))

    def test_values_of_python_and_numpy_are_those_of_parquet(self):
        draw = random.Random(8)
        rows = [row_of(draw) for _ in range(ROWS)]
        for row in rows:
            row.pop("mixed", None)
            row["blob"] = draw.choice([*BLOBS, draw.randbytes(draw.randrange(300)), None, b"?"])
            # Means "missing".
            row["small"] = draw.choice([row.get("small"), math.nan])
        parquet = table(rows, pa.int64()).append_column("row", pa.array(range(ROWS)))
        pq.write_table(parquet, self.scratch / "rows.parquet")
        rows = [{name: stored(row, name) for name in COLUMNS} for row in rows]
        for row in rows:
            row["moment"] = row["moment"] and row["moment"].astimezone(datetime.timezone(datetime.timedelta(hours=7)))
        self.compare(rows, self.predicted(self.scratch / "rows.parquet"))
        arrays = [{name: np.array(value) if name in LISTS and value else value for name, value in row.items()} for row in rows[:100]]
        for row in arrays:
            row["small"] = row["small"] if row["small"] is None else np.float32(row["small"])
            row["count"] = row["count"] if row["count"] is None else np.int64(row["count"])
        np.testing.assert_equal(self.module.transform(arrays), self.module.transform(rows[:100]))

    def test_every_id_is_a_score(self):
        rows = [row_of(random.Random(seed)) for seed in range(50)]
        inputs = self.module.transform(rows)
        (before,) = self.session.run(["score"], inputs)
        several = {feature["name"] for feature in self.described() if feature["maximum"]}
        for feature in self.described():
            name, cardinality = feature["name"], feature["cardinality"]
            if cardinality is None:
                continue
            others = np.where(inputs[name] >= 0, (inputs[name] + 1) % cardinality, inputs[name])
            (after,) = self.session.run(["score"], dict(inputs, **{name: others}))
            changed = (inputs[name] >= 0).any(axis=1)
            if name in ("marks", "marks_weights"):
                changed &= (inputs[feature["weights_input"]] != 0).any(axis=1)
            self.assertTrue(changed.any())
            self.assertGreater(np.median(np.abs(after - before)[changed]), 10 * TOLERANCE, name)
        self.assertEqual(len(several), 7)

    def test_the_module_needs_no_other_packages(self):
        script = "import sys; sys.path.insert(0, '.'); import features; print(features.transform_to_lists([{'needed': 1}])['needed'])"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", script], cwd=self.scratch, capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("[[1.0]]\n", ""))
        for rows, width in [([], 0), ([{"needed": 2}], 0)]:
            inputs = self.module.transform(rows)
            self.assertEqual((inputs["tags"].shape, inputs["image"].shape), ((len(rows), width), (len(rows), 3)))
            self.assertEqual(self.session.run(["score"], inputs)[0].shape, (len(rows),))

    def test_errors_name_the_feature_and_the_value(self):
        for row, says in [
            ({"needed": "x"}, "row 1, feature `needed`, column `needed`: `x` is not a number"),
            ({"needed": None}, "feature `needed`, column `needed`: a value is missing, and the feature has no default"),
            ({"needed": 1, "largest": 256}, "feature `largest`, column `largest`: expected a whole number from 0 to 255, found `256`"),
            ({"needed": 1, "marks": [1], "weights": []}, "feature `marks`, column `weights`: expected one weight per value of column `marks` (1), found 0"),
            ({"needed": 1, "colour": ["a", "b"]}, "column `colour`: expected one value, found 2"),
            ({"needed": 1, "colour": {"a": 1}}, "column `colour`: expected a value, found dict"),
            ({"needed": 1, "real": math.inf}, "feature `real`, column `real`: expected a number, found `inf`"),
        ]:
            with self.assertRaises(self.module.FeatureError) as raised:
                self.module.transform([{"needed": 1}, row])
            self.assertIn(says, str(raised.exception))
        with self.assertRaisesRegex(ValueError, "row 0: has none of the columns"):
            self.module.transform([{"unknown": 1}])

    def test_invalid_requests_fail_and_leave_no_files(self):
        before = set(self.scratch.rglob("*"))
        for arguments, status, says in [
            ([], 2, "--output"),
            (["--transforms", self.scratch / "a.rs"], 2, "a.rs: unknown extension; features are exported as .py or .h"),
            (["--transforms", self.scratch / "a.py", "--external-data"], 2, "--output"),
            (["--transforms", self.scratch / "no" / "a.py"], 1, "no/a.py: No such file"),
            (["--transforms", self.scratch / "a.py", "--output", self.scratch / "no" / "a.onnx"], 1, "no/a.onnx: No such file"),
        ]:
            self.assertIn(says, millstream("export", self.checkpoint, *arguments, expect=status))
        self.assertEqual(set(self.scratch.rglob("*")), before)


if __name__ == "__main__":
    unittest.main()
