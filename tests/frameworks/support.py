"""Programs that tests start and kill, and what they print."""

import os
import subprocess
import sys


def start(*command):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True, env=environment)


def outputs(process):
    """The losses that a program prints, by step, and the model that it prints at its end, if it comes to that."""
    words = [line.split() for line in process.stdout]
    losses = {int(each[1]): each[3] for each in words if each[:1] == ["step"]}
    models = [each[1] for each in words if each[:1] == ["model"]]
    return losses, models[0] if models else None
