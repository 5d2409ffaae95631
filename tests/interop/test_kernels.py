"""Compiles the CUDA kernels with NVIDIA's compiler for every supported GPU. No kernel may spill registers, and the
resources of each must match `resources.txt`, so that a change that costs registers is noticed.

Run by `tests/run`, or alone:

    target/python/bin/python -m unittest discover -s tests/interop -p test_kernels.py -v

After a change of kernels, run with `MILLSTREAM_RENEW=1` to regenerate `resources.txt`.
"""

import importlib.metadata
import os
import pathlib
import subprocess
import unittest

from support import MILLSTREAM, ROOT

RESOURCES = ROOT / "trainer" / "backend" / "src" / "cuda" / "kernels" / "resources.txt"
KERNELS = MILLSTREAM.parent / "examples" / "kernels"
ARCHITECTURES = {"sm_80", "sm_90", "sm_100", "sm_120"}


def libraries() -> pathlib.Path:
    """The directory of the compiler in the package nvidia-cuda-nvrtc."""
    files = importlib.metadata.files("nvidia-cuda-nvrtc")
    return next(pathlib.Path(file.locate()) for file in files if file.name.startswith("libnvrtc.so")).parent


class Kernels(unittest.TestCase):
    def test_no_kernel_spills_and_all_match_the_recorded_resources(self):
        done = subprocess.run([KERNELS, "--libraries", libraries()], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        compiler = f"NVRTC {importlib.metadata.version('nvidia-cuda-nvrtc')}"
        found = [compiler, *done.stdout.splitlines()]
        if os.environ.get("MILLSTREAM_RENEW"):
            RESOURCES.write_text("\n".join(found) + "\n")
        recorded = RESOURCES.read_text().splitlines()
        self.assertEqual(found, recorded)
        kernels = [line.split() for line in found[2:]]
        self.assertEqual({kernel[0] for kernel in kernels}, ARCHITECTURES)
        declared = [
            line
            for source in RESOURCES.parent.glob("*.cu")
            for line in source.read_text().splitlines()
            if line.startswith(("ENTRY(", "ENTRY_OF_RESIDENT("))
        ]
        self.assertEqual(len(kernels), len(ARCHITECTURES) * len(declared))
        self.assertTrue(all(kernel[-1] == "0" for kernel in kernels))


if __name__ == "__main__":
    unittest.main()
