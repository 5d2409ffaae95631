"""Images with real PyTorch: a residual network that trains on them."""

import pathlib
import sys

import millstream.torch
import pytest
import torch
from support import check_kills, run

DIRECTORY = pathlib.Path(__file__).resolve().parents[2] / "examples" / "feeds"
PROGRAM = DIRECTORY / "image_model.py"
sys.path.insert(0, str(DIRECTORY))

import image_model


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(PROGRAM, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """Copies of the batches of the example, of another loader."""
    loader, found = millstream.torch.Loader(image_model.feed(tmp_path_factory.mktemp("images"))), []
    for _ in loader.epochs:
        found += [{name: values.clone() for name, values in batch.items()} for batch in loader]
    return found


def by_hand(batches):
    training = image_model.Training()
    return [training.step(batch) for batch in batches], training.digest()


def test_losses_are_those_of_the_same_batches_by_hand(undisturbed, batches):
    losses, model = undisturbed
    assert len(batches) == len(losses) == 3 * 32
    assert by_hand(batches) == (list(losses.values()), model)
    # It learns, so losses depend on the order of the batches.
    assert float(losses[len(losses)]) < 0.8 * float(losses[1])


def test_each_epoch_has_other_parts_of_the_images(undisturbed, batches):
    """Losses that are equal would prove little if the images did not change."""
    first, second = (torch.cat([batch["image"] for batch in batches[start : start + 32]]) for start in (0, 32))
    sums = [sorted(image.double().sum().item() for image in images) for images in (first, second)]
    assert len(first) == len(second) == 1_000 and not set(sums[0]) & set(sums[1])
    other = [batches[1], batches[0], *batches[2:]]
    assert by_hand(other)[1] != undisturbed[1]


def test_killed_programs_train_the_model_of_an_undisturbed_run(undisturbed, tmp_path):
    check_kills(PROGRAM, tmp_path, undisturbed, saves=5)
