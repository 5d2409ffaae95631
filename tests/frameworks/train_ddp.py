"""A program as users write it: a small model, trained on all ranks, with checkpoints.

    torchrun --nproc-per-node 2 train_ddp.py DATA DIRECTORY [KILL ...]

A rank kills itself before each global step KILL, once each.
"""

import hashlib
import os
import pathlib
import signal
import sys

import millstream as ms
import torch
from millstream.torch import Loader
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    data, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    kills = [int(step) for step in sys.argv[3:]]
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    rank = torch.distributed.get_rank()
    feed = ms.Feed(
        train=data,
        columns={"x": ms.tensor("pixels", "float32", [4]), "number": ms.tensor("number", "int64")},
        batch_size=50,
        epochs=2,
        shuffle_rows=512,
        seed=5,
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = Loader(feed, tail="pad")
    step, path = 0, directory / "checkpoint.pt"
    if path.exists():
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["data"])
        step = checkpoint["step"]
    parallel = DistributedDataParallel(model)
    for _ in loader.epochs:
        for batch in loader:
            if step in kills and rank == step % torch.distributed.get_world_size():
                killed = directory / f"killed-{step}"
                if not killed.exists():
                    killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            error = parallel(batch["x"] / 2500).squeeze(1) - batch["number"] / 2500
            loss = (error.square() * batch.mask).sum() / 50
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 7 == 0:
                parts = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "data": batch.state_dict(),
                    "step": step,
                }
                torch.save(parts, directory / "new.pt")
                os.replace(directory / "new.pt", path)
    if rank == 0:
        weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
        (directory / "result").write_text(f"{step} {hashlib.sha256(weights).hexdigest()}")
    torch.distributed.destroy_process_group()


main()
