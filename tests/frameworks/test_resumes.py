"""Frameworks that take batches in advance, or that have their own ways to resume."""

import json
import os
import pathlib
import subprocess
import sys

import millstream as ms
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS, BATCHES, EPOCHS = 200, 10, 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("feed")
    for number in range(4):
        rows = np.arange(number * 50, number * 50 + 50)
        pq.write_table(pa.table({"number": rows}), directory / f"train-{number}.parquet")
    return str(directory / "train-*.parquet")


def feed(data, **more):
    columns = {"number": ms.tensor("number", "int64")}
    return ms.Feed(train=data, columns=columns, batch_size=20, shuffle_rows=50, epochs=EPOCHS, seed=3, **more)


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_lightning_loses_no_batch_that_it_took_in_advance_and_restores_the_state(data, tmp_path, package):
    """torchdata 1520: batches that were prefetched are lost; Lightning 20550: the state is not restored if the module uses
    `estimated_stepping_batches`."""
    program = str(pathlib.Path(__file__).with_name("lightning_resumes.py"))
    command = [sys.executable, program, package, data, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert done.stdout.count("resumed 9 times") == 4, done.stdout


def test_two_ranks_of_lightning_resume_with_the_rest_of_their_rows(data, tmp_path):
    program = str(pathlib.Path(__file__).with_name("lightning_ranks.py"))

    def run(name, *checkpoint):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*launcher, program, data, tmp_path, *checkpoint], check=True, env=environment, timeout=120)
        return [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(2)]

    whole = run("whole")
    assert [len(steps) for steps in whole] == [27, 27]
    assert sorted(sum(whole[0][9:18] + whole[1][9:18], [])) == list(range(ROWS))
    assert run("resumed", tmp_path / "step=13.ckpt") == [steps[13:] for steps in whole]


def test_accelerate_resumes_in_the_third_epoch(data, tmp_path):
    """accelerate 2016: a resume in a later epoch skips its batches in every epoch, or starts over."""
    from accelerate import Accelerator
    from millstream.torch import Loader

    def run(until=None, state=None):
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(Loader(feed(data)))
        assert type(loader) is Loader
        accelerator.register_for_checkpointing(loader)
        if state is not None:
            accelerator.load_state(state)
        seen = []
        for _ in loader.epochs:
            for batch in loader:
                seen.append((batch.epoch, batch["number"].tolist()))
                if seen[-1][0] == 2 and batch.number == until:
                    accelerator.save_state(tmp_path / f"at-{until}")
                    return seen
        return seen

    whole = run()
    assert len(whole) == BATCHES * EPOCHS
    for until in (0, 4, 9):
        seen = run(until)
        assert seen == whole[: 2 * BATCHES + until + 1]
        assert run(state=tmp_path / f"at-{until}") == whole[len(seen) :]


def test_the_trainer_of_hugging_face_resumes_within_and_between_accumulated_steps(data, tmp_path):
    import torch
    import transformers
    from millstream.torch import Loader
    from millstream.transformers import Trainer

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []

        def forward(self, labels):
            if self.training:
                self.seen.append(labels.tolist())
            scores = self.layer(labels[:, None] / 100)
            return {"loss": scores.square().mean(), "logits": scores}

    def run(accumulate, resume=None):
        held_out = {"val": data, "other": data.replace("train-*", "train-0")}
        columns = {"labels": ms.tensor("number", "int64")}
        of = ms.Feed(
            train=data, eval=held_out, columns=columns, batch_size=20, shuffle_rows=50, epochs=EPOCHS, seed=3
        )
        quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_steps": 1, "logging_steps": 1}
        arguments = transformers.TrainingArguments(
            str(tmp_path / str(accumulate)), num_train_epochs=3, gradient_accumulation_steps=accumulate, **quiet
        )
        names = dict.fromkeys(held_out)
        trainer = Trainer(model=Model(), args=arguments, train_dataset=Loader(of), eval_dataset=names)
        trainer.train(resume_from_checkpoint=resume)
        epochs = [entry["epoch"] for entry in trainer.state.log_history if "loss" in entry]
        assert epochs == pytest.approx([(step + 1) * accumulate / BATCHES for step in range(len(epochs))])
        return trainer

    loader = ms.Loader(feed(data))
    order = [batch["number"].tolist() for _ in range(3) for batch in loader]
    for accumulate in (1, 2):
        trainer = run(accumulate)
        assert trainer.model.seen == order
        for step in (1, 3, BATCHES // accumulate, 2 * BATCHES // accumulate + 2):
            again = run(accumulate, str(tmp_path / str(accumulate) / f"checkpoint-{step}"))
            assert again.model.seen == order[step * accumulate :], (accumulate, step)
    losses = trainer.evaluate()
    assert {"eval_val_loss", "eval_other_loss"} <= losses.keys()
    # The Trainer takes the mean over batches, of which the last is short.
    batches = torch.arange(50).split(20)
    expected = sum(trainer.model(rows)["loss"].item() for rows in batches) / len(batches)
    assert losses["eval_other_loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="10 batches per epoch are not a multiple of gradient_accumulation_steps=3"):
        run(3)


def test_a_tensorflow_pipeline_carries_the_state_of_each_batch_past_what_it_prefetches(data):
    import millstream.tf

    def batches(state=None):
        loader = ms.Loader(feed(data))
        loader.load_state_dict(state)
        dataset = millstream.tf.dataset(loader, state="state").prefetch(5)
        for _ in loader.epochs:
            for batch in dataset:
                yield batch["number"].numpy().tolist(), json.loads(batch["state"].numpy())

    whole = list(batches())
    assert sorted(sum((rows for rows, _ in whole[:BATCHES]), [])) == list(range(ROWS))
    assert len(whole) == BATCHES * EPOCHS
    for place in (0, 8, 9, 10, 27):
        rest = [rows for rows, _ in batches(whole[place][1])]
        assert rest == [rows for rows, _ in whole[place + 1 :]]


def test_batches_that_were_taken_in_vain_are_handed_out_again(data):
    loader = ms.Loader(feed(data))
    whole = [batch["number"].tolist() for batch in ms.Loader(feed(data))]
    with pytest.raises(RuntimeError, match="no batch is left to train"):
        loader.trained()
    loader.await_training()
    first = iter(loader)
    ahead = [next(first)["number"].tolist() for _ in range(3)]
    assert loader.state_dict() is None
    loader.trained()
    again = [batch["number"].tolist() for batch in loader]
    assert ahead + again[2:] == whole and again[:2] == whole[1:3]
    resumed = ms.Loader(feed(data))
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))["number"].tolist() == whole[1]


def test_a_batch_that_a_framework_converts_keeps_its_columns(data):
    from millstream.torch import Loader

    batch = next(iter(Loader(feed(data), tail="pad", mask="is_row")))
    assert list(batch) == ["number", "is_row"] and len(batch) == 2
    converted = type(batch)({name: value.double() for name, value in batch.items()})
    assert converted["number"].tolist() == batch["number"].tolist() and converted["is_row"].sum() == 20
    with pytest.raises(RuntimeError, match="no place in a feed"):
        converted.state_dict()
    with pytest.raises(ms.SpecError, match="choose another"):
        next(iter(Loader(feed(data), mask="number")))
