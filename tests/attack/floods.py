"""Floods of a daemon's control socket, metrics and web page. Each runs in a separate process until it is killed.

Frames are those of HTTP/2 (RFC 9113) with literal headers (RFC 7541, section 6.2.2) and the length prefix of gRPC, written
by hand, because a client library would not misbehave so.
"""

import contextlib
import itertools
import multiprocessing
import os
import pathlib
import random
import resource
import socket
import struct
import subprocess
import time
from collections.abc import Sequence

from host import BUILT

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 0, 1, 3, 4, 9
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
SERVICE = "/millstream.control.v1.Control/"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(method: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": SERVICE + method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(literal(name.encode(), value.encode()) for name, value in fields.items())


def literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def message(body: bytes, claimed: int | None = None) -> bytes:
    return b"\x00" + struct.pack(">I", len(body) if claimed is None else claimed) + body


def text_field(number: int, value: str) -> bytes:
    encoded = value.encode()
    return bytes([number << 3 | 2]) + varint(len(encoded)) + encoded


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def call(stream: int, method: str, body: bytes) -> bytes:
    """A whole call with one small message."""
    return frame(HEADERS, END_HEADERS, stream, headers(method)) + frame(DATA, END_STREAM, stream, message(body))


def connect(path: str, settings: bytes = b"") -> socket.socket:
    """A connection that has begun, retried while the daemon refuses more."""
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(path)
            client.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
            client.setblocking(False)
            return client
        except OSError:
            client.close()
            time.sleep(0.01)


def push(client: socket.socket, content: bytes) -> bool:
    """Sends as much as the daemon takes; False if it has closed the connection."""
    try:
        client.send(content)
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


def idle(path: str, _: str):
    """2,000 connections that say nothing."""
    held = []
    while True:
        if len(held) < 2000:
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            with contextlib.suppress(OSError):
                client.connect(path)
            held.append(client)
        else:
            time.sleep(1)
            held = held[1000:]


def garbage(path: str, _: str):
    """Random bytes, with and without the start of HTTP/2."""
    draw = random.Random(1)
    while True:
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
            client.connect(path)
            client.sendall((PREFACE if draw.random() < 0.5 else b"") + draw.randbytes(draw.randrange(20_000)))


def unfinished(path: str, _: str):
    """Messages of nearly 4 MiB that never end, on 60 connections."""
    start = frame(HEADERS, END_HEADERS, 1, headers("Submit")) + frame(DATA, 0, 1, message(bytes(16_000), 4_100_000))
    held = []
    while True:
        while len(held) < 60:
            held.append(connect(path))
            push(held[-1], start)
        time.sleep(0.05)
        held = [client for client in held if push(client, frame(DATA, 0, 1, bytes(16_000)))]


def large_headers(path: str, _: str):
    """Headers that never end."""
    more = frame(CONTINUATION, 0, 1, literal(b"x-flood", b"y" * 100) * 100)
    while True:
        client = connect(path)
        push(client, frame(HEADERS, 0, 1, headers("List")))
        while push(client, more):
            time.sleep(0.001)
        client.close()


def silent_readers(path: str, job: str):
    """Calls whose replies are never read, on 6,000 streams."""
    body = text_field(1, job)
    no_window = struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)
    while True:
        held = []
        for _ in range(60):
            client = connect(path, no_window)
            for stream in range(100):
                method = ["Watch", "Logs", "History", "List"][stream % 4]
                push(client, call(2 * stream + 1, method, b"" if method == "List" else body))
            held.append(client)
        time.sleep(2)
        for client in held:
            client.close()


def rapid_resets(path: str, _: str):
    """Streams that are opened and reset (CVE-2023-44487)."""
    while True:
        client = connect(path)
        for stream in itertools.count(1, 2):
            opened = frame(HEADERS, END_HEADERS, stream, headers("List"))
            if not push(client, opened + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))):
                break
        client.close()


def submissions(path: str, _: str):
    """Valid jobs, faster than any queue takes them."""
    text = text_field(1, pathlib.Path(path).with_name("tiny.toml").read_text())
    body = text + text_field(2, str(pathlib.Path(path).with_name("tiny.toml")))
    while True:
        client = connect(path)
        for stream in range(1, 17, 2):
            push(client, call(stream, "Submit", body))
        time.sleep(0.02)
        client.close()


def hostile_job_files(path: str, _: str):
    """Job files of a megabyte that are slow to parse or deeply nested."""
    room = pathlib.Path(path).parent / "hostile"
    room.mkdir(exist_ok=True)
    texts = [
        "a = " + "[" * 500_000,
        "a = " + "{a=" * 300_000,
        "".join(f"[k{number}]\n" for number in range(80_000)),
        ".".join(["a"] * 400_000) + " = 1",
        "".join(f"a{number} = {number}\n" for number in range(60_000)),
        'name = "' + "\\u0041" * 150_000 + '"',
    ]
    for number, text in enumerate(texts):
        (room / f"{number}.toml").write_text(text)
    for number in itertools.cycle(range(len(texts))):
        client(path, "submit", str(room / f"{number}.toml"))


def strange_files(path: str, _: str):
    """Vocabularies that are devices or pipes."""
    room = pathlib.Path(path).parent / "strange"
    room.mkdir(exist_ok=True)
    fifo = room / "fifo"
    if not fifo.exists():
        os.mkfifo(fifo)
    text = pathlib.Path(path).with_name("tiny.toml").read_text()
    for number, file in enumerate([fifo, "/dev/zero", "/proc/self/mem", room]):
        vocabulary = f'color = {{ kind = "vocabulary", file = "{file}" }}'
        (room / f"{number}.toml").write_text(text.replace('color = { kind = "vocabulary" }', vocabulary))
    for number in itertools.cycle(range(4)):
        client(path, "submit", str(room / f"{number}.toml"))


def profiles(path: str, job: str):
    """Profiles of the running job, several at a time."""
    body = text_field(1, job) + b"\x10" + varint(1000)
    while True:
        client = connect(path)
        for stream in range(1, 9, 2):
            push(client, call(stream, "Profile", body))
        time.sleep(0.5)
        client.close()


def viewer(path: str, job: str):
    """A user who may only look: changes that are refused, and everything that may be looked at."""
    nobody = 65534
    os.setgroups([])
    os.setgid(nobody)
    os.setuid(nobody)
    body = text_field(1, job)
    while True:
        client = connect(path)
        for stream in range(60):
            method = ["Cancel", "Submit", "Remove", "Watch", "List", "History", "Snapshot", "Checkpoint"][stream % 8]
            push(client, call(2 * stream + 1, method, body))
        time.sleep(0.02)
        client.close()


def scrapes(path: str, _: str):
    """Clients of the metrics."""
    flood_http(port_of(path, "metrics"), ["/metrics", "/"])


def pages(path: str, job: str):
    """Clients of the web page, with and without its token."""
    port = port_of(path, "web")
    printed = subprocess.run([BUILT / "millstream", "web", "--socket", path], capture_output=True, text=True, check=True).stdout
    query = printed.split("?")[1].split()[0]
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"GET /?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        reply = client.recv(1 << 16).decode()
    cookie = next(line.split(": ")[1].split(";")[0] for line in reply.splitlines() if line.lower().startswith("set-cookie"))
    flood_http(port, ["/", "/api/overview", f"/api/jobs/{job}", "/../etc/passwd", "/?" + "x" * 4000], ["", f"Cookie: {cookie}\r\n"])


def port_of(path: str, name: str) -> int:
    return int(pathlib.Path(path).with_name(name).read_text())


def flood_http(port: int, targets: list[str], fields: Sequence[str] = ("",)):
    """Requests as fast as they are answered, and clients that are silent, slow, endless, unreadable or that do not read."""
    draw = random.Random(1)
    held: list[socket.socket] = []
    while True:
        client = socket.socket()
        client.settimeout(1)
        request = f"GET {draw.choice(targets)} HTTP/1.1\r\nHost: localhost\r\n{draw.choice(fields)}"
        with contextlib.suppress(OSError):
            client.connect(("127.0.0.1", port))
            kind = draw.randrange(8)
            if kind < 4:
                client.sendall(f"{request}\r\n".encode())
                client.recv(1 << 16)
            else:
                client.sendall([b"", request.encode(), draw.randbytes(5000), (request + "X-A: b\r\n" * 9000).encode()][kind - 4])
        held.append(client)
        while len(held) > 500:
            held.pop(draw.randrange(len(held))).close()


def nothing(path: str, _: str):
    """Computes and leaves the daemon alone: what any other work on this machine costs."""
    while True:
        sum(range(10_000))


def client(path: str, *words: str):
    command = [BUILT / "millstream", *words, "--socket", path]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=60)


FLOODS = [
    idle,
    garbage,
    unfinished,
    large_headers,
    silent_readers,
    rapid_resets,
    hostile_job_files,
    strange_files,
    profiles,
    submissions,
    scrapes,
    pages,
]
# Needs another user.
if os.geteuid() == 0:
    FLOODS.append(viewer)


def start(flood, path: str, job: str) -> multiprocessing.Process:
    """Starts a flood. It yields to all other processes, so that what they lose is what the daemon's answers cost."""

    def body():
        os.nice(19)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
        flood(path, job)

    process = multiprocessing.get_context("fork").Process(target=body, daemon=True)
    process.start()
    return process
