#!/usr/bin/env python3
"""Measures steps by several GPUs, ours and a rival's in turns, for `bench/gpu`.

    python3 bench/gpu_turns.py VARIANT --workers N --device cpu|cuda --rival-device cpu|cuda --limit SECONDS [--rounds 5]
        -- PROGRAM... -- SHAPE...

PROGRAM is `step_speed` with what it alone needs, SHAPE the model and batches of both; VARIANT is one of `bench/gpu_ranks.py`. The
ranks of both are started, each with its GPU. Then they take turns: one measures while the other waits for its next turn. The
rival's step is one CUDA graph where the variant allows it; if that fails or is not ready within the limit, it starts again
without. Prints a line for ours and one for the rival: `{"entrant": ..., "workers": N, "rates": [...]}`, examples/s of whole
batches.
"""

import argparse
import itertools
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
from typing import Self

RIVAL = pathlib.Path(__file__).resolve().with_name("gpu_ranks.py")


def main() -> None:
    options, program, shape = arguments()
    with Ranks("ours", [*program, *shape, "--json", "--wait"], options.workers, options.device) as ours:
        ours.ready(options.limit)
        with rival(options, shape) as theirs:
            rates = {ours: [], theirs: []}
            for _ in range(options.rounds):
                for entrant, found in rates.items():
                    found.append(entrant.turn(options.limit))
    for entrant, found in rates.items():
        print(json.dumps({"entrant": entrant.name, "workers": options.workers, **entrant.about, "rates": found}), flush=True)


def arguments() -> tuple[argparse.Namespace, list[str], list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--rival-device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds until an entrant is ready, and of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parts = [list(words) for is_end, words in itertools.groupby(sys.argv[1:], lambda word: word == "--") if not is_end]
    options = parser.parse_args(parts[0] if parts else [])
    if len(parts) != 3:
        parser.error("expected OPTIONS -- PROGRAM... -- SHAPE...")
    return options, parts[1], parts[2]


def rival(options: argparse.Namespace, shape: list[str]) -> "Ranks":
    """The ranks of the rival, ready for their first turn."""
    has_graph = options.rival_device == "cuda" and options.variant != "torchrec"
    for more in [["--graph"], []] if has_graph else [[]]:
        command = [sys.executable, str(RIVAL), options.variant, *shape, *more]
        ranks = Ranks(options.variant, command, options.workers, options.rival_device)
        try:
            ranks.ready(options.limit)
            return ranks
        except Failed as failure:
            ranks.end()
            print(" ".join([options.variant, *more]), "failed:", failure, file=sys.stderr)
            if not more:
                raise
    raise AssertionError("the last attempt returns or raises")


class Failed(RuntimeError):
    """An entrant has ended, or is late."""


class Ranks:
    """The processes of an entrant, which print what they measure and wait for a line before each turn."""

    def __init__(self, name: str, command: list[str], workers: int, device: str):
        self.name, self.about = name, {}
        self.meet = tempfile.TemporaryDirectory()
        self.answers: queue.Queue[str | None] = queue.Queue()
        # As the daemon sets them for its workers.
        environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "=lo"} if name == "ours" else None
        self.processes = []
        for rank in range(workers):
            own = f"cuda:{rank}" if device == "cuda" else device
            words = ["--device", own, "--workers", str(workers), "--rank", str(rank), "--meet", self.meet.name]
            self.processes.append(
                subprocess.Popen([*command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            )
        for rank, process in enumerate(self.processes):
            threading.Thread(target=self.read, args=(rank, process), daemon=True).start()

    def read(self, rank: int, process: subprocess.Popen) -> None:
        """Passes on what the first rank prints; the end of any rank is an answer too."""
        for line in process.stdout:
            # Libraries may print, too.
            if rank == 0 and line.startswith("{"):
                self.answers.put(line)
        self.answers.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.end()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.meet.cleanup()

    def ready(self, limit: float) -> None:
        """Waits for the first line."""
        line = self.answer(limit)
        self.about = {key: line[key] for key in ("torch", "graph") if key in line}

    def turn(self, limit: float) -> float:
        """Measures once; returns the rate."""
        for process in self.processes:
            try:
                process.stdin.write("\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise Failed(f"a rank of {self.name} has ended") from None
        return self.answer(limit)["rate"]

    def answer(self, limit: float) -> dict:
        try:
            line = self.answers.get(timeout=limit)
        except queue.Empty:
            raise Failed(f"no answer of {self.name} within {limit:.0f} s") from None
        if line is None:
            raise Failed(f"a rank of {self.name} has ended")
        return json.loads(line)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(str(failure))
