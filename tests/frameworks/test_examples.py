"""The examples as they are: compared with training by hand, and killed at random steps."""

import importlib.metadata
import json
import pathlib
import sys

import millstream as ms
import pytest
from support import check_kills, outputs, run, start

PROGRAMS = pathlib.Path(__file__).resolve().parent
DIRECTORY = PROGRAMS.parents[1] / "examples" / "feeds"
EXAMPLES = sorted(path.stem for path in DIRECTORY.glob("train_*.py"))
STEPS = 4 * 80


@pytest.fixture(scope="module", params=EXAMPLES)
def undisturbed(request, tmp_path_factory):
    """An example, with its losses and its model."""
    directory = tmp_path_factory.mktemp("undisturbed")
    losses, model = run(DIRECTORY / f"{request.param}.py", directory)
    assert len(losses) == STEPS
    return request.param, losses, model


def test_there_is_an_example_for_each_framework():
    frameworks = ["accelerate", "jax", "lightning", "tensorflow", "torch", "transformers"]
    assert [f"train_{name}" for name in frameworks] == EXAMPLES


def test_losses_are_those_of_training_by_hand(undisturbed, tmp_path):
    example, losses, model = undisturbed
    sys.path.insert(0, str(DIRECTORY))
    import synthetic

    columns = {"row": ms.tensor("row", "int64")}
    feed = ms.Feed(
        train=synthetic.write(tmp_path), columns=columns, batch_size=50, shuffle_rows=500, epochs=4, seed=7
    )
    loader = ms.Loader(feed)
    order = [[batch["row"].tolist() for batch in loader] for _ in loader.epochs]
    assert sorted(sum(order[3], [])) == list(range(4_000))
    (tmp_path / "order.json").write_text(json.dumps(order))
    process = start(PROGRAMS / "by_hand.py", DIRECTORY / f"{example}.py", tmp_path, tmp_path / "order.json")
    by_hand = outputs(process)
    assert process.wait() == 0
    assert by_hand == (losses, model)


def test_killed_programs_train_the_model_of_an_undisturbed_run(undisturbed, tmp_path):
    """tensorflow 63079: the position is not tied to the checkpoints, and steps are skipped."""
    example, *expected = undisturbed

    def is_late(first):
        """Lightning 2.2 that resumes between epochs ends the first one after another batch, and saves a checkpoint then, too."""
        is_of_2_2 = example == "train_lightning" and importlib.metadata.version("lightning").startswith("2.2.")
        return is_of_2_2 and first % (STEPS // 4) == 1

    check_kills(DIRECTORY / f"{example}.py", tmp_path, expected, saves=10, is_late=is_late)
