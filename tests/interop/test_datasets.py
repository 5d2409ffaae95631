"""The statistics and the drift of datasets, against NumPy."""

import pathlib

import numpy
import pyarrow
import pyarrow.parquet
from support import millstream

ROWS = 20_000


def dataset(catalog: pathlib.Path, *words: str):
    return millstream("dataset", *words, "--catalog", catalog)


def write(path: pathlib.Path, numbers: numpy.ndarray, words: numpy.ndarray, absent: int) -> None:
    masked = pyarrow.array(numbers, mask=numpy.arange(len(numbers)) < absent)
    pyarrow.parquet.write_table(pyarrow.table({"number": masked, "word": pyarrow.array(words)}), path)


def psi(before: numpy.ndarray, after: numpy.ndarray) -> float:
    p, q = before / before.sum(), after / after.sum()
    p, q = numpy.maximum(p, 1e-4), numpy.maximum(q, 1e-4)
    return float(numpy.sum((q - p) * numpy.log(q / p)))


def test_statistics_and_drift(tmp_path):
    draw = numpy.random.default_rng(3)
    numbers = [draw.normal(5.0, 2.0, ROWS), draw.normal(6.0, 2.0, ROWS)]
    words = [draw.choice(["red", "green", "blue"], ROWS, p=p) for p in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])]
    absent = [0, 2_000]
    catalog = tmp_path / "catalog"
    for version in range(2):
        data = tmp_path / f"{version}.parquet"
        write(data, numbers[version], words[version], absent[version])
        assert dataset(catalog, "register", "numbers", str(data))["version"] == version + 1

    number, word = dataset(catalog, "stats", "numbers/2")
    present = numbers[1][absent[1] :]
    found = number["summary"]["numbers"]
    assert numpy.isclose(found["mean"], present.mean(), rtol=1e-12)
    assert numpy.isclose(found["deviation"], present.std(), rtol=1e-9)
    assert (found["min"], found["max"]) == (present.min(), present.max())
    assert abs(found["median"] - numpy.median(present)) < 0.01
    assert number["absent"] == absent[1]
    assert word["summary"]["distinct"] == 3
    counts = {top["value"]: top["count"] for top in word["summary"]["top"]}
    assert counts == {value: int((words[1] == value).sum()) for value in ("red", "green", "blue")}

    columns = {column["name"]: column for column in dataset(catalog, "diff", "numbers/1", "numbers/2")["columns"]}
    values = ["red", "green", "blue"]
    wanted = psi(*(numpy.array([(sample == value).sum() for value in values]) for sample in words))
    assert numpy.isclose(columns["word"]["psi"], wanted, rtol=1e-9)
    # Tenths of the earlier values, and the absent ones.
    edges = numpy.quantile(numbers[0], numpy.linspace(0.1, 0.9, 9))
    tenths = [numpy.bincount(numpy.searchsorted(edges, sample), minlength=10) for sample in (numbers[0], present)]
    wanted = psi(*(numpy.append(bins, count) for bins, count in zip(tenths, absent)))
    assert abs(columns["number"]["psi"] - wanted) < 0.05 * wanted
    assert (columns["word"]["drift"], columns["number"]["drift"]) == ("large", "large")
