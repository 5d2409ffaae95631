"""A daemon under attack, and the commands that are run against it."""

import atexit
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"

# Longer than any command on a small file takes, however busy the machine.
HANG_SECONDS = 60


class Completed:
    """A command that has ended, or was killed because it hung."""

    def __init__(self, command: list[str], code: int, out: str, error: str, hung: bool):
        self.command, self.code, self.out, self.error, self.hung = command, code, out, error, hung

    def defect(self) -> str | None:
        """Why this end is a defect, whatever the input was; None if it is not."""
        if self.hung:
            return f"hung for {HANG_SECONDS} s"
        if self.code < 0:
            return f"killed by signal {-self.code}"
        # A panic of a decoder that was caught is reported as damage, without this text.
        if self.code > 2 or "panicked at" in self.error:
            return f"exit status {self.code}: {self.error[-400:]}"
        return None


def run(*command: str | pathlib.Path, seconds: float = HANG_SECONDS, limit_bytes: int | None = None) -> Completed:
    """Runs a program to its end; with at most `limit_bytes` of address space, if given."""
    words = [str(word) for word in command]

    def limit():
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=limit)
    try:
        out, error = process.communicate(timeout=seconds)
        hung = False
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        hung = True
    return Completed(words, process.returncode, out, error, hung)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Host:
    """A daemon with its state in `room`, which serves metrics and the web page, and which every user may look at.

    `room` / "metrics" and `room` / "web" hold the ports.
    """

    def __init__(self, room: pathlib.Path):
        self.room = room
        self.socket = room / "daemon.sock"
        self.log = room / "daemon.log"
        (room / "millstreamd.toml").write_text('viewers = "everyone"\n')
        for name in ("metrics", "web"):
            (room / name).write_text(str(free_port()))
        self.start()

    def start(self):
        arguments = ["--socket", self.socket, "--state", self.room / "state", "--config", self.room / "millstreamd.toml"]
        for name in ("metrics", "web"):
            arguments += [f"--{name}", f"127.0.0.1:{(self.room / name).read_text()}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([BUILT / "millstreamd", *arguments], stdout=log, stderr=log)
        atexit.register(self.process.kill)
        deadline = time.monotonic() + HANG_SECONDS
        while self.command("list").code != 0:
            assert self.is_alive(), f"the daemon does not start: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, "the daemon does not answer"
            time.sleep(0.05)

    def command(self, *words: str | pathlib.Path, **options) -> Completed:
        return run(BUILT / "millstream", *words, "--socket", self.socket, **options)

    def json(self, *words: str | pathlib.Path) -> dict:
        completed = self.command(*words, "--json")
        assert completed.code == 0, f"{words}: {completed.error}"
        return json.loads(completed.out)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def peak_bytes(self) -> int:
        """The most memory that the daemon has had at a time."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def stop(self):
        if self.is_alive():
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=HANG_SECONDS)
