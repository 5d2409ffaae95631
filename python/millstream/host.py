"""The process that reads data for the ranks of a program.

The first rank starts it, with a socket that it listens on already. It ends ten seconds after its last rank. Errors reach
the ranks as exceptions. What else it might print goes to the file that `MILLSTREAM_HOST_LOG` names, if any: the pipes of a
program must end with the program.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

from . import _native

IDLE_SECONDS = 10.0

# libjpeg-turbo, which the wheel carries.
_TURBOJPEG = pathlib.Path(__file__).with_name("libturbojpeg.so.0")


def start(program: str) -> subprocess.Popen[bytes] | None:
    """Starts the host of `program`, unless there is one."""
    fd = _native.listen(program)
    if fd is None:
        return None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if _TURBOJPEG.exists():
        environment.setdefault("MILLSTREAM_TURBOJPEG", os.fspath(_TURBOJPEG))
    log = open(os.environ.get("MILLSTREAM_HOST_LOG", os.devnull), "ab")
    try:
        # In a new session, so that Ctrl-C at the terminal reaches the program alone, which then leaves the feed.
        return subprocess.Popen(
            [sys.executable, "-c", "from millstream import host; host.main()", str(fd)],
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )
    finally:
        log.close()
        os.close(fd)


def check(process: subprocess.Popen[bytes] | None) -> None:
    """Raises the reason if a host that was just started has failed."""
    code = None if process is None else process.poll()
    if code:
        raise _native.FeedError(
            f"the process that reads the data has ended with code {code}; set MILLSTREAM_HOST_LOG to a file to see why"
        )


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _native.serve(int(sys.argv[1]), IDLE_SECONDS)

