#!/usr/bin/env python3
"""Compares the losses of two programs step by step: `bench/gpu_agree.py OURS THEIRS [TOLERANCE]`, files whose last line is JSON."""

import json
import pathlib
import sys

# As in bench/step.py: initial weights are rounded and sums have another order.
AGREEMENT = float(sys.argv[3]) if len(sys.argv) > 3 else 5e-5

ours, theirs = (json.loads(pathlib.Path(path).read_text().splitlines()[-1])["losses"] for path in sys.argv[1:3])
assert len(ours) > 1 and ours[-1] < ours[0], f"nothing was learned: {ours}"
worst = max(abs(b - a) / a for a, b in zip(ours, theirs, strict=True))
print(f"losses of {len(ours)} steps agree to {worst:.1e}")
sys.exit(worst >= AGREEMENT)
