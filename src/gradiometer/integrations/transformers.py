"""The Hugging Face `Trainer` and every trainer made of it: `Trainer(...,
callbacks=[GradiometerCallback(run="runs/lm")])`.

The callback only says when a training begins and ends and what the trainer logs; gradients are seen
by the meter itself, for transformers' own `on_pre_optimizer_step` comes after clipping. Step n is
the optimizer step that makes `state.global_step` n.
"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from gradiometer.errors import MissingExtra
from gradiometer.integrations.session import Session, SessionContext, Unfinished
from gradiometer.store.database import DATABASE_NAME

try:
    from transformers import Trainer, TrainerCallback
except ModuleNotFoundError as error:
    raise MissingExtra("transformers", "transformers", "watching a transformers Trainer") from error

__all__ = ["GradiometerCallback"]


class GradiometerCallback(SessionContext, TrainerCallback):
    """Measures the gradients of `trainer.train()`; takes the keyword arguments of
    `gradiometer.watch`.

    A training that goes on from a checkpoint (`resume_from_checkpoint=`) goes on with the run of
    the same folder: what lies beyond the checkpoint's step is removed. `train()` called again goes
    on after the last step. When it raises, the run gets an event `exception` and is closed; a
    callback added later by `trainer.add_callback` learns of it too late for the first `train()`:
    put `with callback:` around that, or the run is closed by the next training or at the end of the
    process.
    """

    def __init__(self, run: str | os.PathLike[str] | None = "auto", **options: Any) -> None:
        self.session = Session(run, **options)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer is being made; of an exception in `train` transformers tells no callback."""
        trainer = _calling_trainer()
        if trainer is not None:
            trainer.train = _closing(trainer, weakref.ref(self))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Model and optimizer are there, wrapped as they will train."""
        self.session.close(Unfinished("a training began anew before this one had ended"))
        if state.global_step:
            self._go_on_from(state.global_step)
        fresh = self.session.meter is None and self.session.options.get("resume") is None
        trainer = _calling_trainer()
        meter = self.session.start(
            kwargs["model"] if trainer is None else trainer.model_wrapped,
            kwargs["optimizer"],
            config={"trainer": type(trainer).__name__, **_plain(args)},
            seed=args.seed,
            micro_batch_size=args.per_device_train_batch_size,
        )
        if fresh:
            meter.step(state.global_step + 1)
        if trainer is not None:
            self.begun(trainer)

    def begun(self, trainer: Any) -> None:
        """For those who know more of a trainer: the meter of its training is there."""

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """What the trainer logs, under its own names, whatever trackers it reports to."""
        logged = (logs or {}).items()
        self.session.log({name: x for name, x in logged if isinstance(x, (int, float))})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The run is one finished file from here on."""
        self.session.close()

    def _go_on_from(self, step: int) -> None:
        """A checkpoint was loaded: the run beside it goes on there, or a new one begins there."""
        options, last = dict(self.session.options), self.session.meter
        folder = options["run"] if last is None or last.run is None else last.run
        options["run"] = folder
        kept = folder not in (None, "auto") and (Path(folder) / DATABASE_NAME).is_file()
        if kept and options.get("resume") is None:
            options |= {"resume": step, "overwrite": False}
        self.session = Session(**options)


def _calling_trainer() -> Any:
    """The trainer in whose method we are: transformers hands a callback everything but this."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), Trainer):
            return found
        frame = frame.f_back
    return None


def _closing(trainer: Any, callback: weakref.ref[GradiometerCallback]) -> Any:
    """`trainer.train`, with the run closed however it ends."""
    train = trainer.train

    @functools.wraps(train)
    def closing(*args: Any, **kwargs: Any) -> Any:
        try:
            return train(*args, **kwargs)
        except BaseException as error:
            if (held := callback()) is not None:
                held.session.close(error)
            raise

    return closing


def _plain(args: Any) -> dict[str, Any]:
    """The trainer's arguments as plain values; transformers blanks tokens, and so does the run."""
    return {name: value for name, value in args.to_dict().items() if not callable(value)}
