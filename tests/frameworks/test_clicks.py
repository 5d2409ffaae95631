"""Clicks with real PyTorch: a DLRM that trains on them."""

import pathlib
import sys

import millstream.torch
import pytest
from support import check_kills, run

DIRECTORY = pathlib.Path(__file__).resolve().parents[2] / "examples" / "feeds"
PROGRAM = DIRECTORY / "click_model.py"
sys.path.insert(0, str(DIRECTORY))

import click_model


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(PROGRAM, tmp_path_factory.mktemp("undisturbed"))


def test_losses_are_those_of_the_same_batches_by_hand(undisturbed, tmp_path):
    losses, model = undisturbed
    loader, training, by_hand = millstream.torch.Loader(click_model.feed(tmp_path)), click_model.Training(), []
    for _ in loader.epochs:
        batches = [{name: values.clone() for name, values in batch.items()} for batch in loader]
        by_hand += [training.step(batch) for batch in batches]
    assert (by_hand, training.digest()) == (list(losses.values()), model)
    # It learns, so losses depend on the order of the batches.
    assert len(losses) == 3 * 63 and float(losses[len(losses)]) < 0.8 * float(losses[1])


def test_killed_programs_train_the_model_of_an_undisturbed_run(undisturbed, tmp_path):
    check_kills(PROGRAM, tmp_path, undisturbed, saves=5)
