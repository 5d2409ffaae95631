"""Programs that tests start and kill, and what they print.

MILLSTREAM_KILLS is the number of kills of each, MILLSTREAM_SEED decides when.
"""

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np

KILLED = pathlib.Path(__file__).resolve().with_name("killed.py")
KILLS = int(os.environ.get("MILLSTREAM_KILLS", 3))


def start(*command):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True, env=environment)


def outputs(process):
    """The losses that a program prints, by step, and the model that it prints at its end, if it comes to that."""
    words = [line.split() for line in process.stdout]
    losses = {int(each[1]): each[3] for each in words if each[:1] == ["step"]}
    models = [each[1] for each in words if each[:1] == ["model"]]
    return losses, models[0] if models else None


def run(program, directory):
    """The losses and the model of a program that nothing disturbs."""
    process = start(program, directory)
    losses, model = outputs(process)
    assert process.wait() == 0 and list(losses) == list(range(1, len(losses) + 1))
    return losses, model


def check_kills(program, directory, undisturbed, saves, is_late=lambda first: False):
    """Kills a program that saves a checkpoint every so many steps, and checks that it computes what an undisturbed run does.

    `is_late(first)`: whether one that resumes at the step `first` may have saved the one after it, too.
    """
    losses, model = undisturbed
    random, done, steps = np.random.default_rng(int(os.environ.get("MILLSTREAM_SEED", 3))), 0, len(losses)
    for kill in range(KILLS):
        # The end is for the last run.
        most = min(max(steps // KILLS, 2 * saves), max(steps - done, 2))
        process = start(KILLED, program, directory, random.integers(1, most))
        seen, _ = outputs(process)
        assert process.wait() == -signal.SIGKILL
        assert seen and seen.items() <= losses.items(), f"after {kill} kills"
        # It dies before it saves that step.
        first = max(done - 1, 0) // saves * saves + 1
        assert min(seen) in ((first, first + 1) if is_late(first) else (first,))
        done = max(seen)
    process = start(program, directory)
    rest, end = outputs(process)
    assert process.wait() == 0 and end == model
    assert rest.items() <= losses.items() and max(rest) == steps
