"""Feeds in the Trainer of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import transformers
from packaging.version import Version
from transformers import Trainer as HubTrainer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from .loader import Batch
from .torch import Loader

# That of 4.44 saves the states of callbacks from the start of training with each checkpoint, and would resume there.
if Version(transformers.__version__) < Version("4.46"):
    raise ImportError(
        f"transformers {transformers.__version__} is too old for millstream.transformers: "
        "its checkpoints lack the place in the feed; install 4.46 or later"
    )


class FeedMixin:
    """Lets a subclass of `transformers.Trainer` train on a loader, and resume where its checkpoint was.

        class MyTrainer(FeedMixin, MyOtherTrainer): ...

        trainer = MyTrainer(model=model, args=arguments, train_dataset=loader, eval_dataset="val")
        trainer.train(resume_from_checkpoint=True)

    `train_dataset` is a `millstream.torch.Loader`, whose columns are the arguments of the model. `eval_dataset` is the name of
    held-out data of its feed, or a dictionary with such names as keys.
    """

    # Of the Trainer.
    args: TrainingArguments
    train_dataset: Loader
    eval_dataset: Any
    add_callback: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not isinstance(self.train_dataset, Loader):
            raise TypeError(f"train_dataset is a {type(self.train_dataset).__name__}: expected a millstream.torch.Loader")
        # The loader resumes by its state. The Trainer's own way reads and skips the batches before.
        self.args.ignore_data_skip = True
        self.add_callback(Position(self.train_dataset))

    def get_train_dataloader(self) -> Loader:
        return self.train_dataset

    def get_eval_dataloader(self, eval_dataset: str | None = None) -> Any:
        name = self.eval_dataset if eval_dataset is None else eval_dataset
        if not isinstance(name, str):
            raise TypeError(f"eval_dataset={name!r}: expected the name of held-out data of the feed")
        return _HeldOut(self.train_dataset, name)


class Trainer(FeedMixin, HubTrainer):
    """`transformers.Trainer` on a loader: see `FeedMixin`."""


class Position(TrainerCallback, ExportableState):
    """Saves with each checkpoint, in `trainer_state.json`, the place after the batch trained last, and resumes there."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        loader.await_training()

    def state(self) -> dict[str, Any]:
        """What the Trainer saves."""
        return {"args": {}, "attributes": {"data": self._loader.state_dict()}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **options: Any
    ) -> None:
        """Resumes, if the Trainer has loaded a checkpoint, before it asks for the first batch."""
        batches = _length(self._loader)
        if batches is not None and batches % args.gradient_accumulation_steps:
            raise ValueError(
                f"{batches} batches per epoch are not a multiple of gradient_accumulation_steps="
                f"{args.gradient_accumulation_steps}: after a resume, the Trainer would take the last step of the epoch "
                "without its gradients. Change either, or drop the last batch"
            )
        # By the names of their classes; annotated as the list from which it is made.
        states: Any = state.stateful_callbacks
        saved = states[type(self).__name__]["attributes"]["data"]
        if saved != self._loader.state_dict():
            self._loader.load_state_dict(saved)

    def on_substep_end(self, *arguments: Any, **options: Any) -> None:
        """A batch whose gradients are accumulated is trained."""
        self._loader.trained()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **options: Any
    ) -> None:
        """The last batch of a step is trained."""
        self._loader.trained()
        # The Trainer counts from the batch with which it resumed.
        if (batches := _length(self._loader)) is not None:
            state.epoch = state.global_step * args.gradient_accumulation_steps / batches


class _HeldOut:
    """The batches of held-out data, each time from the start."""

    def __init__(self, loader: Loader, name: str) -> None:
        self._loader = loader
        self._name = name

    def __iter__(self) -> Iterator[Batch]:
        return self._loader.evaluate(self._name)


def _length(loader: Loader) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
