"""Feeds of JSON lines, WebDataset and MDS, from files that other programs wrote, and files of these formats that others read."""

import gzip
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import webdataset
from PIL import Image

import millstream as ms
from millstream.loader import Ragged

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))

import mds
from support import millstream

ROWS = 500


def feed(files, columns, **more):
    columns = {"number": ms.tensor("number", "int64"), **columns}
    return ms.Feed(train=str(files), columns=columns, **{"batch_size": 32, "shuffle_rows": 64, **more})


def values(feed):
    """The values of each row, by its number. A number that occurs twice fails."""
    found = {}
    for batch in ms.Loader(feed):
        for row, number in enumerate(batch["number"].tolist()):
            assert number not in found, f"row {number} occurs twice"
            found[number] = {name: value(batch[name], row) for name in batch if name != "number"}
    return found


def value(column, row):
    if isinstance(column, Ragged):
        offsets, elements = column
        return elements[offsets[row] : offsets[row + 1]].tolist()
    one = column[row]
    return one if isinstance(one, bytes) else one.copy()


def objects():
    """Objects as programs write them: numbers of several kinds in one column, absent values, nested objects."""
    for number in range(ROWS):
        yield {
            "number": number,
            "price": number / 7 if number % 3 else number,
            "large": 2**63 + number,
            "clicked": number % 5 == 0,
            "user": {"name": f"näme {number}", "tags": list(range(number % 4))},
            **({"note": None} if number % 2 else {}),
        }


def write_lines(path, lines):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        for number, line in enumerate(lines):
            # With escapes or as UTF-8, with both ends of lines, and with blank lines.
            file.write(json.dumps(line, ensure_ascii=number % 2 == 0) + ("\r\n" if number % 3 == 0 else "\n"))
            file.write("\n" if number % 50 == 0 else "")


@pytest.mark.parametrize("name", ["lines.jsonl", "lines.ndjson.gz", "lines"])
def test_json_lines_are_those_of_python(tmp_path, name):
    write_lines(tmp_path / name, objects())
    columns = {
        "price": ms.tensor("price", "float64"),
        "large": ms.tensor("large", "uint64"),
        "clicked": ms.tensor("clicked", "bool"),
        "name": ms.raw("user.name", 30),
        "tags": ms.ragged("user.tags", "int8", 4),
        "note": ms.tensor("note", "float32", missing=-1),
    }
    found = values(feed(tmp_path / name, columns, lanes=3))
    wanted = {row["number"]: row for row in objects()}
    assert found.keys() == wanted.keys()
    for number, row in found.items():
        line = wanted[number]
        assert row["price"] == line["price"] and row["large"] == line["large"], number
        assert row["clicked"] == line["clicked"] and row["note"] == -1, number
        assert row["name"].decode() == line["user"]["name"] and row["tags"] == line["user"]["tags"], number


def test_parts_of_json_lines_have_each_line_once(tmp_path):
    lines = [{"number": number, "text": "x" * (number * 7919 % 3000)} for number in range(3_000)]
    write_lines(tmp_path / "lines.jsonl", lines)
    assert (tmp_path / "lines.jsonl").stat().st_size > 40 * 65_536
    for lanes in (1, 4):
        found = values(feed(tmp_path / "lines.jsonl", {"text": ms.raw("text", 3_000)}, split_bytes="64KiB", lanes=lanes))
        assert found == {line["number"]: {"text": line["text"].encode()} for line in lines}


def test_damaged_lines_are_counted_with_an_address(tmp_path):
    text = '{"number": 0}\n{"number": }\n{"number": 1.5}\n[]\n{"number": 2}\n'
    (tmp_path / "lines.jsonl").write_text(text)
    found = values(feed(tmp_path / "lines.jsonl", {}, on_bad_record="skip"))
    assert sorted(found) == [0, 2]
    with pytest.raises(ms.FeedError, match=r"lines\.jsonl: damaged at record 1, byte 14: not a JSON object on one line"):
        values(feed(tmp_path / "lines.jsonl", {}))
    (tmp_path / "array.json").write_text('[{"number": 0}, {"number": 1}]')
    with pytest.raises(ms.FeedError, match=r"array\.json: .* a JSON array; write one object per line"):
        values(feed(tmp_path / "array.json", {}))


def picture(number):
    file = io.BytesIO()
    Image.new("RGB", (16, 8), (number % 256, 7, 200)).save(file, "PNG")
    return file.getvalue()


def write_samples(pattern, samples):
    with webdataset.ShardWriter(str(pattern), maxcount=100, verbose=0) as writer:
        for sample in samples:
            writer.write(sample)


def samples():
    for number in range(ROWS):
        yield {
            "__key__": f"train/{number:06}",
            "png": picture(number),
            "cls": number % 10,
            "json": {"number": number, "caption": f"picture {number}", "box": [number, 1.5]},
            "txt": f"text {number}",
        }


@pytest.mark.parametrize("pattern", ["shard-%02d.tar", "shard-%02d.tar.gz"])
def test_samples_are_those_of_webdataset(tmp_path, pattern):
    write_samples(tmp_path / pattern, samples())
    files = sorted(tmp_path.glob("shard-*"))
    assert len(files) == ROWS / 100
    read = webdataset.WebDataset([str(file) for file in files], shardshuffle=False)
    wanted = {json.loads(sample["json"])["number"]: sample for sample in read}
    columns = {
        "number": ms.tensor("json.number", "int64"),
        "key": ms.raw("__key__", 40),
        "image": ms.image("png", [8, 16]),
        "label": ms.tensor("cls", "int32"),
        "caption": ms.raw("json.caption", 40),
        "box": ms.tensor("json.box", "float32", [2]),
        "text": ms.raw("txt", 40),
    }
    found = values(ms.Feed(train=str(tmp_path / "shard-*"), columns=columns, batch_size=32, shuffle_rows=64))
    assert found.keys() == wanted.keys()
    for number, row in found.items():
        sample = wanted[number]
        assert row["key"].decode() == sample["__key__"] and row["text"] == sample["txt"]
        assert row["label"] == int(sample["cls"])
        assert row["caption"].decode() == json.loads(sample["json"])["caption"]
        assert row["box"].tolist() == [number, 1.5]
        np.testing.assert_array_equal(row["image"], np.asarray(Image.open(io.BytesIO(sample["png"]))))


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_all_formats_are_read(tmp_path, format):
    with tarfile.open(tmp_path / "shard.tar", "w", format=format) as archive:
        for number in range(20):
            # Names beyond the field for them; USTAR has a prefix, the others have extended headers.
            length = 140 if format == tarfile.USTAR_FORMAT else 400
            for extension, data in [("number", str(number).encode()), ("Bin", bytes([number]) * (number * 100))]:
                member = tarfile.TarInfo(f"{'d' * length}/{number:03}.{extension}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            directory = tarfile.TarInfo(f"folder{number}.d")
            directory.type = tarfile.DIRTYPE
            archive.addfile(directory)
            link = tarfile.TarInfo(f"{number}.link")
            link.type, link.linkname = tarfile.SYMTYPE, "l" * 150
            if format != tarfile.USTAR_FORMAT:
                archive.addfile(link)
    found = values(feed(tmp_path / "shard.tar", {"data": ms.raw("bin", 2_000)}))
    assert found == {number: {"data": bytes([number]) * (number * 100)} for number in range(20)}


def test_a_truncated_archive_is_an_error(tmp_path):
    write_samples(tmp_path / "shard-%02d.tar", list(samples())[:100])
    file = tmp_path / "shard-00.tar"
    whole = file.read_bytes()
    columns = {"number": ms.tensor("json.number", "int64")}
    # Between two files of the archive, where it would look whole, and within one.
    for length in (512 * 200, 512 * 200 + 100):
        file.write_bytes(whole[:length])
        with pytest.raises(ms.FeedError, match=r"shard-00\.tar: damaged at record \d+, byte \d+: the file ends within"):
            values(ms.Feed(train=str(file), columns=columns, batch_size=32))


@pytest.mark.parametrize("name", ["plain/*.mds", "zstd/*.mds.zstd"])
def test_shards_are_those_of_streaming(name):
    columns = {
        "number": ms.tensor("number", "int64"),
        "small": ms.tensor("small", "int8"),
        "large": ms.tensor("large", "uint64"),
        "half": ms.tensor("half", "float16"),
        "single": ms.tensor("single", "float32"),
        "double": ms.tensor("double", "float64"),
        "digits": ms.raw("digits", 40),
        "text": ms.raw("text", 400),
        "blob": ms.raw("blob", 8),
        "label": ms.tensor("info.label", "int32"),
        "fixed": ms.tensor("fixed", "int32", [2, 3]),
        "tokens": ms.ragged("tokens", "uint16", 8),
        "any": ms.ragged("any", "float32", 8),
        "image": ms.image("image", [4, 6]),
    }
    found = values(ms.Feed(train=str(GOLDEN / name), columns=columns, batch_size=8, shuffle_rows=16))
    wanted = {row["number"]: row for row in mds.rows(mds.image)}
    assert found.keys() == wanted.keys()
    for number, row in found.items():
        of = wanted[number]
        for name in ("small", "large", "half", "single", "double"):
            assert row[name] == of[name] and row[name].dtype == of[name].dtype, (number, name)
        assert row["digits"].decode() == str(of["digits"])
        assert (row["text"].decode(), row["blob"]) == (of["text"], of["blob"])
        assert row["label"] == of["info"]["label"]
        np.testing.assert_array_equal(row["fixed"], of["fixed"])
        assert row["tokens"] == of["tokens"].tolist() and row["any"] == of["any"].flatten().tolist()
        np.testing.assert_array_equal(row["image"], np.asarray(of["image"]))


ARROW = {
    "text": pa.array(["one", "", "drei é"] * 100),
    "blob": pa.array([b"\xff\x00", b"", b"x"] * 100, pa.binary()),
    "number": pa.array(range(300), pa.int32()),
    "half": pa.array(np.arange(300, dtype=np.float16) / 8),
    "single": pa.array(np.arange(300, dtype=np.float32) / 3),
    "double": pa.array(np.arange(300) / 3),
    "large": pa.array([2**64 - 1 - number for number in range(300)], pa.uint64()),
    "clicked": pa.array([number % 5 == 0 for number in range(300)]),
    "tokens": pa.array([list(range(number % 400)) for number in range(300)], pa.list_(pa.uint16())),
    "vector": pa.array([[number, 0.5] for number in range(300)], pa.list_(pa.float32(), 2)),
    "words": pa.array([["a", f"b{number}"] for number in range(300)]),
    "box": pa.array([{"x": number, "y": [0.5]} for number in range(300)]),
}


def write_arrow(path):
    pyarrow.parquet.write_table(pa.table(ARROW), path)
    return pa.table(ARROW).to_pylist()


@pytest.mark.parametrize("name", ["shard-*.tar", "shard-*.tar.gz"])
def test_webdataset_reads_converted_samples(tmp_path, name):
    rows = write_arrow(tmp_path / "in.parquet")
    renames = ["--rename", "number=cls", "--rename", "text=txt"]
    done = millstream("convert", tmp_path / "in.parquet", tmp_path / name, "--shards", 3, *renames)
    read = webdataset.WebDataset([str(file) for file in done["files"]], shardshuffle=False).decode()
    found = list(read)
    assert len(found) == len(rows) == 300
    for number, (sample, row) in enumerate(zip(found, rows)):
        assert sample["__key__"] == f"{number:06}" and sample["cls"] == number
        assert (sample["txt"], sample["blob"]) == (row["text"], row["blob"])
        assert float(sample["double"]) == row["double"] and np.float32(sample["single"]) == np.float32(row["single"])
        assert int(sample["large"]) == row["large"] and int(sample["clicked"]) == row["clicked"]
        wanted = {name: row[name] for name in ("tokens", "vector", "words", "box")}
        assert sample["json"] == wanted
    with tarfile.open(done["files"][0]) as archive:
        members = archive.getmembers()
        # 100 samples of eight columns and a JSON file.
        assert {(member.mtime, member.uid, member.gid) for member in members} == {(0, 0, 0)} and len(members) == 900


def test_tarfile_reads_converted_names_and_keys(tmp_path):
    keys = ["k" * 90 + "/" + "x" * 200, "ü/é", "a b", "train/v1.0/000"]
    table = pa.table({"__key__": keys, "txt": ["a", "b", "c", "d"], "ä" * 80: ["1"] * 4})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    millstream("convert", tmp_path / "in.parquet", tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as archive:
        names = archive.getnames()
        assert names == [f"{key}.{extension}" for key in keys for extension in ("txt", "ä" * 80)]
        assert archive.extractfile(names[2]).read() == b"b"


def read_shard(data, entry):
    """The samples of a shard of MDS, as the description of the format has them."""
    samples = int.from_bytes(data[:4], "little")
    offsets = np.frombuffer(data, "<u4", samples + 1, 4)
    assert samples == entry["samples"] and offsets[-1] == len(data) == entry["raw_data"]["bytes"]
    description = json.loads(data[4 * (samples + 2) : offsets[0]])
    columns = list(zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"]))
    assert all(description[key] == entry[key] for key in ("column_names", "column_encodings", "column_sizes"))
    for start, end in zip(offsets[:-1], offsets[1:]):
        sample, row = data[start:end], {}
        at = 4 * sum(size is None for _, _, size in columns)
        sizes = iter(np.frombuffer(sample[:at], "<u4").tolist())
        for name, encoding, size in columns:
            size = next(sizes) if size is None else size
            value, at = sample[at : at + size], at + size
            kind, _, rest = encoding.partition(":")
            if kind == "ndarray":
                number, _, shape = rest.partition(":")
                if not shape:
                    axes, width = value[0] >> 2, 1 << (value[0] & 3)
                    assert axes == 1
                    length, value = int.from_bytes(value[1 : 1 + width], "little"), value[1 + width :]
                row[name] = np.frombuffer(value, number)
                assert len(row[name]) == (int(shape) if shape else length)
            elif kind == "json":
                row[name] = json.loads(value)
            elif kind in ("str", "bytes"):
                row[name] = value.decode() if kind == "str" else value
            else:
                (row[name],) = np.frombuffer(value, kind)
        assert at == len(sample)
        yield row


@pytest.mark.parametrize("name", ["shard-*.mds", "shard-*.mds.gz"])
def test_converted_shards_are_those_of_the_format(tmp_path, name):
    rows = write_arrow(tmp_path / "in.parquet")
    done = millstream("convert", tmp_path / "in.parquet", tmp_path / "out" / name, "--shards", 3)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["version"] == 2 and len(index["shards"]) == 3 and len(done["files"]) == 4
    found = []
    for entry in index["shards"]:
        assert (entry["format"], entry["version"], entry["hashes"]) == ("mds", 2, [])
        data = (tmp_path / "out" / (entry["zip_data"] or entry["raw_data"])["basename"]).read_bytes()
        if entry["compression"]:
            assert entry["compression"] == "gz" and entry["zip_data"]["bytes"] == len(data)
            data = gzip.decompress(data)
        found += read_shard(data, entry)
    assert len(found) == len(rows)
    encodings = dict(zip(index["shards"][0]["column_names"], index["shards"][0]["column_encodings"]))
    assert (encodings["number"], encodings["half"], encodings["vector"]) == ("int32", "float16", "ndarray:float32:2")
    for sample, row in zip(found, rows):
        for name in ("text", "blob", "number", "large", "double", "clicked", "words", "box"):
            assert sample[name] == row[name], name
        assert sample["half"] == np.float16(row["half"]) and sample["single"] == np.float32(row["single"])
        assert sample["tokens"].tolist() == row["tokens"] and sample["vector"].tolist() == row["vector"]
