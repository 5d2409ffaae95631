"""The daemon of this machine, which reads data for programs that may use it.

It listens on `feed.sock`, beside the control socket that `millstream` uses: in the directory of `MILLSTREAM_SOCKET`, which the
package sets at login for members of the group `millstream`; else in `/run/millstream` for root, and in
`$XDG_RUNTIME_DIR/millstream` for other users. `MILLSTREAM_FEED_SOCKET` names another one, or `none`.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from . import _native

NONE = "none"

_FEED_SOCKET = "feed.sock"
_VARIABLE = "MILLSTREAM_FEED_SOCKET"


class Address(NamedTuple):
    """Where a daemon may listen."""

    path: str
    # Whether the program names it. Otherwise there need not be a daemon.
    is_given: bool


def address(given: str | os.PathLike[str] | None) -> Address | None:
    """The socket that the program names, or the usual one. `None` if the program shall read by itself."""
    named = os.fspath(given) if given is not None else os.environ.get(_VARIABLE)
    if named:
        return None if named == NONE else Address(os.path.abspath(named), True)
    control = os.environ.get("MILLSTREAM_SOCKET")
    if control:
        return Address(os.path.join(os.path.dirname(os.path.abspath(control)), _FEED_SOCKET), False)
    directory = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(directory):
        return None
    return Address(os.path.join(directory, "millstream", _FEED_SOCKET), False)


def connect(address: Address) -> int | None:
    """The descriptor of a connection, or `None` if no daemon listens on a socket that the program does not name.

    Raises `FeedError` if the program may not use the socket: it must not read by itself what others share.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address.path)
        except (FileNotFoundError, ConnectionRefusedError):
            if not address.is_given:
                return None
            raise _native.FeedError(
                f"no daemon listens on {address.path}: start millstreamd, or set {_VARIABLE}={NONE}, "
                "with which a program reads its data by itself"
            ) from None
        except PermissionError:
            raise _native.FeedError(
                f"{address.path}: this user may not use the daemon of this machine: join the group of the socket, or set "
                f"{_VARIABLE}={NONE}, with which a program reads its data by itself"
            ) from None
        return connection.detach()
