"""Writes golden/parquet/: one table, written in many ways by pyarrow and Polars, and its values as text.

    pip install pyarrow==26.0.1 polars==2.1.0; python pipeline/tests/golden/parquet.py

The test `parquet_golden.rs` reads each file and compares all values.
"""

import datetime
import decimal
import json
import pathlib

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent / "parquet"
ROWS = 60


def table() -> pa.Table:
    rows = range(ROWS)
    absent = lambda value: [None if row % 7 == 3 else value(row) for row in rows]
    day = datetime.date(2026, 11, 21)
    noon = datetime.datetime(2026, 11, 21, 12, 0, 0)
    columns = {
        "i8": pa.array(absent(lambda r: r - 30), pa.int8()),
        "i16": pa.array(absent(lambda r: r * 100 - 3000), pa.int16()),
        "i32": pa.array(absent(lambda r: r**4 - 5), pa.int32()),
        "i64": pa.array(absent(lambda r: (r % 11) << 40), pa.int64()),
        "u8": pa.array(absent(lambda r: 255 - r), pa.uint8()),
        "u16": pa.array(absent(lambda r: 65535 - r), pa.uint16()),
        "u32": pa.array(absent(lambda r: 2**32 - 1 - r), pa.uint32()),
        "u64": pa.array(absent(lambda r: 2**64 - 1 - r), pa.uint64()),
        "f16": pa.array(np.array([r / 4 for r in rows], np.float16)),
        "f32": pa.array(absent(lambda r: r / 8), pa.float32()),
        "f64": pa.array(absent(lambda r: r / 16 - 1.5), pa.float64()),
        "required": pa.array([r % 5 for r in rows], pa.int64()),
        "bool": pa.array(absent(lambda r: r % 3 == 0), pa.bool_()),
        "text": pa.array(absent(lambda r: "zwölf" * (r % 4) + str(r)), pa.string()),
        "few": pa.array(absent(lambda r: "ab"[r % 2]), pa.string()),
        "large_text": pa.array(absent(lambda r: str(r)), pa.large_string()),
        "bytes": pa.array(absent(lambda r: bytes([255, r])), pa.binary()),
        "fixed": pa.array(absent(lambda r: bytes([r, 0, 255])), pa.binary(3)),
        "date": pa.array(absent(lambda r: day + datetime.timedelta(days=r)), pa.date32()),
        "millis": pa.array(absent(lambda r: noon + datetime.timedelta(milliseconds=r)), pa.timestamp("ms")),
        "micros": pa.array(absent(lambda r: noon - datetime.timedelta(days=30000, microseconds=r)), pa.timestamp("us", "UTC")),
        "nanos": pa.array(absent(lambda r: noon + datetime.timedelta(microseconds=r)), pa.timestamp("ns")),
        "time": pa.array(absent(lambda r: datetime.time(23, r % 60, 1, r)), pa.time64("us")),
        "small_decimal": pa.array(absent(lambda r: decimal.Decimal(r - 30) / 4), pa.decimal128(8, 2)),
        "decimal": pa.array(absent(lambda r: decimal.Decimal(r - 30) * 10**20 / 8), pa.decimal128(30, 3)),
        "list": pa.array([None if r % 7 == 3 else [None if v == 2 else v for v in range(r % 5)] for r in rows], pa.list_(pa.int64())),
        "list_text": pa.array([None if r % 7 == 3 else ["x" * v for v in range(r % 3)] for r in rows], pa.list_(pa.string())),
        "struct": pa.array(
            [None if r % 7 == 3 else {"a": None if r % 5 == 0 else r, "b": {"c": str(r)}} for r in rows],
            pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]),
        ),
        "null": pa.nulls(ROWS),
    }
    return pa.table(columns, schema=pa.schema([pa.field(n, a.type, nullable=n != "required") for n, a in columns.items()]))


def text(value) -> str | None:
    """A value in the form that the test uses."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case bytes():
            return value.hex()
        case str():
            return value.encode().hex()
        case list():
            return "[" + ", ".join("null" if v is None else text(v) for v in value) + "]"
        case decimal.Decimal():
            return f"{value:f}"
    return str(value)


def values(array: pa.ChunkedArray) -> list:
    plain = {"date32[day]": pa.int32(), "time64[us]": pa.int64()}.get(str(array.type))
    plain = pa.int64() if pa.types.is_timestamp(array.type) else plain
    array = array.cast(plain) if plain else array
    return [text(value) for value in array.to_pylist()]


def main():
    data = table()
    HERE.mkdir(exist_ok=True)
    expected = {name: values(data[name]) for name in data.column_names if name != "struct"}
    rows = data["struct"].to_pylist()
    expected["struct.a"] = [text(row and row["a"]) for row in rows]
    expected["struct.b.c"] = [text(row and row["b"]["c"]) for row in rows]
    (HERE / "values.json").write_text(json.dumps(expected) + "\n")

    def write(name: str, columns=None, **options):
        kept = data if columns is None else data.select(columns)
        pq.write_table(kept, HERE / f"{name}.parquet", row_group_size=40, write_page_checksum=True, **options)

    for codec in ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]:
        write(codec, compression=codec)
    write("second", data_page_version="2.0", use_dictionary=False)
    numbers = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "date", "millis", "required"]
    write("delta", numbers, use_dictionary=False, column_encoding={name: "DELTA_BINARY_PACKED" for name in numbers})
    texts = ["text", "bytes", "few"]
    write("delta-length", texts, use_dictionary=False, column_encoding={n: "DELTA_LENGTH_BYTE_ARRAY" for n in texts})
    write("delta-bytes", texts, use_dictionary=False, column_encoding={n: "DELTA_BYTE_ARRAY" for n in texts})
    split = ["f32", "f64", "i32", "i64", "fixed"]
    write("byte-stream-split", split, use_dictionary=False, column_encoding={n: "BYTE_STREAM_SPLIT" for n in split})
    # Small limits, so that dictionary encoding falls back to plain after a few values.
    write("fallback", dictionary_pagesize_limit=40, data_page_size=64, write_batch_size=8)
    write("int96", ["nanos", "few"], use_deprecated_int96_timestamps=True)
    write("no-schema", store_schema=False)
    held = [n for n in data.column_names if n not in ("f16", "fixed", "null", "small_decimal", "decimal")]
    polars.from_arrow(data.select(held)).write_parquet(HERE / "polars.parquet", row_group_size=40)
    print(sorted(path.name for path in HERE.iterdir()), sum(path.stat().st_size for path in HERE.iterdir()))


if __name__ == "__main__":
    main()
