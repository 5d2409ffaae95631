"""What a daemon holds, sampled over time, as a table and as curves."""

import pathlib
import time

# The colour of a curve, and of the moments at which the daemon is idle.
CURVE, IDLE = "#2f7ed8", "#d9822b"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 120, 80, 26, 20


def held(pid: int) -> dict[str, float]:
    """What the process `pid` holds now: memory, descriptors, threads, workers."""
    place = pathlib.Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    kib = lambda name: int(status[name].split()[0])
    links = []
    for link in (place / "fd").iterdir():
        try:
            links.append(str(link.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    workers = sum(len((task / "children").read_text().split()) for task in (place / "task").iterdir() if task.exists())
    return {
        "anonymous memory, MiB": kib("RssAnon") / 1024,
        "shared memory, MiB": kib("RssShmem") / 1024,
        "descriptors": len(links),
        "memory files": sum("memfd:" in link for link in links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "threads": int(status["Threads"]),
        "workers": workers,
    }


class Samples:
    """Samples by time since the first one, in seconds."""

    def __init__(self):
        self.began = time.monotonic()
        self.rows: list[tuple[float, bool, dict[str, float]]] = []

    def take(self, pid: int, idle: bool = False):
        self.rows.append((time.monotonic() - self.began, idle, held(pid)))

    def idle(self, name: str) -> list[float]:
        return [row[name] for _, idle, row in self.rows if idle]

    def names(self) -> list[str]:
        return list(self.rows[0][2])

    def write(self, room: pathlib.Path):
        """Writes `soak.csv` and `soak.svg`."""
        lines = [",".join(["seconds", "idle", *[name.replace(",", "") for name in self.names()]])]
        for seconds, idle, row in self.rows:
            lines.append(",".join([f"{seconds:.1f}", str(int(idle)), *[f"{value:g}" for value in row.values()]]))
        (room / "soak.csv").write_text("\n".join(lines) + "\n")
        (room / "soak.svg").write_text(self.picture())

    def picture(self) -> str:
        names = self.names()
        last = self.rows[-1][0] or 1
        height = len(names) * (HEIGHT + TOP) + BOTTOM
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">']
        parts.append(f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>')
        x = lambda seconds: LEFT + seconds / last * (WIDTH - LEFT - 20)
        for number, name in enumerate(names):
            top = number * (HEIGHT + TOP) + TOP
            highest = max(row[name] for _, _, row in self.rows) or 1
            y = lambda value, top=top, highest=highest: top + HEIGHT - 12 - value / highest * (HEIGHT - 24)
            parts.append(f'<text x="{LEFT}" y="{top - 6}" font-weight="bold">{name}</text>')
            for value in (0, highest):
                parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#dfe3e8"/>')
                parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
            points = " ".join(f"{x(seconds):.1f},{y(row[name]):.1f}" for seconds, _, row in self.rows)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{CURVE}"/>')
            for seconds, idle, row in self.rows:
                if idle:
                    parts.append(f'<circle cx="{x(seconds):.1f}" cy="{y(row[name]):.1f}" r="3" fill="{IDLE}"/>')
        for minutes in range(0, int(last // 60) + 1, max(1, int(last // 600))):
            parts.append(f'<text x="{x(minutes * 60):.1f}" y="{height - 6}" text-anchor="middle">{minutes} min</text>')
        return "\n".join([*parts, "</svg>", ""])
