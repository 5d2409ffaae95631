"""Ranks on several machines, which read by themselves and compare what they have found."""

import json
import os
import socket
import subprocess
import sys

import millstream as ms
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 1_000

DROP = {"tail": "drop"}
PAD = {"tail": "pad"}
SHARD = {"tail": "pad", "shard": True}

# Each prints its rows and the number of held-out ones, or the error.
PROGRAMS = {
    "torch": """
import torch, millstream.torch
torch.distributed.init_process_group("gloo")
loader = millstream.torch.Loader(of(), run=os.environ["RANK"], **how)
report(loader)
torch.distributed.destroy_process_group()
""",
    "jax": """
import jax, millstream.jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
address = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
jax.distributed.initialize(address, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
loader = millstream.jax.Loader(
    of(), rank=jax.process_index(), world=jax.process_count(), local_world=1, run=os.environ["RANK"], **how
)
report(loader)
""",
}

COMMON = """
import json, os, sys, millstream as ms

how = json.loads(sys.argv[3])

def of():
    columns = {"number": ms.tensor("number", "int32")}
    return ms.Feed(train=sys.argv[1], eval={"val": "val.parquet"}, columns=columns, batch_size=100, shuffle_rows=512)

def report(loader):
    try:
        loader.load_state_dict(json.loads(sys.argv[2]))
        numbers = [int(number) for batch in loader for number in batch["number"][batch.mask]]
        print("rows", json.dumps(numbers), flush=True)
        print("held out", sum(int(batch.mask.sum()) for batch in loader.evaluate("val")), flush=True)
    except ms.FeedError as error:
        print("error", error, flush=True)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("machines")
    for name, first in (("a", 0), ("b", ROWS // 2)):
        numbers = np.arange(first, first + ROWS // 2)
        table = pa.table({"number": numbers})
        pq.write_table(table, directory / f"train-{name}.parquet")
        # Held-out rows that each machine has in its own directory.
        (directory / name).mkdir()
        pq.write_table(table, directory / name / "val.parquet")
    return directory


def run(framework, *machines):
    """What the ranks print, each the only one of a machine, which are given a directory, the files, a state, and options of the
    loader."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    variables = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(machines))}
    variables |= {"LOCAL_WORLD_SIZE": "1", "JAX_PLATFORMS": "cpu"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", COMMON + PROGRAMS[framework], str(files), json.dumps(state), json.dumps(how)],
            env={**variables, "RANK": str(rank)},
            cwd=directory,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, (directory, files, state, how) in enumerate(machines)
    ]
    try:
        return [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def rows(printed):
    return json.loads(next(line for line in printed.splitlines() if line.startswith("rows"))[len("rows") :])


@pytest.mark.parametrize("how", [DROP, SHARD])
@pytest.mark.parametrize("framework", PROGRAMS)
def test_machines_have_different_rows_of_the_same_batches(data, framework, how):
    printed = run(framework, *[(data / "a", data / "train-*.parquet", None, how)] * 2)
    assert sorted(rows(printed[0]) + rows(printed[1])) == list(range(ROWS))
    assert all(len(rows(of)) == ROWS // 2 and f"held out {ROWS // 4}" in of for of in printed), printed
    # With shards, each machine has the rows of one of the two files.
    assert how != SHARD or {min(rows(of)) for of in printed} == {0, ROWS // 2}


@pytest.mark.parametrize("framework", PROGRAMS)
@pytest.mark.parametrize("differing", ["files", "held-out files", "state", "shards"])
def test_machines_that_read_different_data_do_not_train_together(data, framework, differing):
    directory, files = data / "a", data / "train-*.parquet"
    feed = ms.Feed(
        train=str(files),
        eval={"val": "val.parquet"},
        columns={"number": ms.tensor("number", "int32")},
        batch_size=100,
        shuffle_rows=512,
    )
    state = next(iter(ms.Loader(feed))).state_dict()
    others = {
        "files": (directory, data / "train-a.parquet", None, PAD),
        "held-out files": (data / "b", files, None, PAD),
        "state": (directory, files, state, PAD),
        "shards": (directory, files, None, SHARD),
    }
    printed = run(framework, (directory, files, None, PAD), others[differing])
    reason = "does not read a shard, as others do" if differing == "shards" else "differ in the feed, its state or the files"
    assert all(reason in of for of in printed), printed
    assert ["rows" in of for of in printed] == [differing == "held-out files"] * 2, printed
