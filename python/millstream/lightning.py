"""The place of training in a feed, in the checkpoints of Lightning."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from .loader import Loader


class Position(Callback):
    """Saves with each checkpoint the place after the batch trained last, and resumes there.

        trainer = Trainer(callbacks=[Position(loader)])
        trainer.fit(model, loader, ckpt_path="last")

    Lightning saves the state of a loader by itself, but a loader without a length has handed out one batch more by then
    than was trained; and Lightning does not restore it if `configure_optimizers` asks for
    `trainer.estimated_stepping_batches`. Callbacks that save checkpoints come after this one in the list; Lightning moves its
    own to the end.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        loader.await_training()

    def on_train_batch_end(self, *arguments: Any) -> None:
        """The batch that began first among those handed out is trained."""
        self._loader.trained()

    def state_dict(self) -> dict[str, Any]:
        """That of the loader, which Lightning saves with the checkpoint."""
        return {"loader": self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes. Lightning calls this before anything asks for the loader's batches or their number."""
        self._loader.load_state_dict(state_dict["loader"])
