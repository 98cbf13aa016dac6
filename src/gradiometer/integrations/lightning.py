"""Lightning and rl4co: `Trainer(..., callbacks=[GradiometerCallback(run="runs/pomo")])`, whichever package it comes from.

Lightning makes the gradients inside `optimizer.step(closure)` and clips them there; the meter sees both by itself. Step n is
the n-th round of optimizer steps, from 0: with one optimizer `trainer.global_step` as it is before the step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gradiometer.capture.meter import Meter
from gradiometer.errors import MissingExtra
from gradiometer.integrations import rl4co_parts
from gradiometer.integrations.session import Session
from gradiometer.store.database import DATABASE_NAME

__all__ = ["GradiometerCallback"]

SETTINGS = "max_epochs max_steps accumulate_grad_batches gradient_clip_val gradient_clip_algorithm precision world_size"


def _callback_class() -> Any:
    """Of both packages, for their trainers look at the class: the same code under two names."""
    names = [name for name in ("lightning.pytorch", "pytorch_lightning") if find_spec(name.partition(".")[0])]
    if not names:
        raise MissingExtra("lightning", "lightning", "the callback for Lightning and rl4co")
    return type("Callback", tuple(import_module(name).Callback for name in names), {})


class GradiometerCallback(_callback_class()):  # type: ignore[misc]
    """Keeps the gradients of `trainer.fit`, and what the module logs, in the folder `run`; takes the keywords of `watch`.

    `fit(..., ckpt_path=...)` goes on with the run after the checkpoint's step and removes what lies beyond. `fit` again with
    the same module goes on after the last step. An exception in the training is an event of the run, which is then closed.
    """

    def __init__(self, run: str | os.PathLike[str] | None = "auto", **options: Any) -> None:
        self.session = Session(run, **options)
        self._wishes = self.session.options
        self._seen: dict[str, tuple[Tensor, Any]] = {}
        self._restored: dict[str, Any] = {}
        self._global_step, self._whole, self._late = 0, True, True
        """Lightning's; whether the last batch brought a step; whether others log after our look at it."""

    @property
    def meter(self) -> Meter | None:
        """Of the training in progress, or else of the last one."""
        return self.session.meter

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """After the sanity check, and after a checkpoint was restored."""
        self._seen, self._global_step, self._whole = {}, trainer.global_step, True
        others = {type(one).on_train_batch_end.__module__.partition(".")[0] for one in (pl_module, *trainer.callbacks)}
        self._late = bool(others - {"lightning", "pytorch_lightning", "gradiometer"})
        state, model = self._go_back(trainer), rl4co_parts.trained(trainer.model, pl_module)
        seed, size = os.environ.get("PL_GLOBAL_SEED", ""), getattr(trainer.train_dataloader, "batch_size", None)
        self.session.start(
            model,
            trainer.optimizers,
            config=_config(trainer, pl_module),
            seed=int(seed) if seed.isdigit() else None,
            blocks=rl4co_parts.blocks(model, pl_module),
            micro_batch_size=size if pl_module.automatic_optimization else None,
            direction="sketch",  # with a closure the scratch that would hold the last gradient is not free
        )
        if step := state.get("next_step"):
            self.session.tell(lambda meter: meter.load_state_dict(state) if "analyst" in state else meter.step(step))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """What others logged after our look at the last batch, and the averages of the last epoch."""
        if self._whole and (self._late or batch_idx == 0):
            self._read(trainer)
        if rl4co_parts.is_rl4co(pl_module):
            self.session.at(rollout=trainer.fit_loop.total_batch_idx)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Lightning logs nothing of a batch that is only added up, unless the module steps by itself."""
        self._whole = not pl_module.automatic_optimization or trainer.global_step != self._global_step
        self._global_step = trainer.global_step
        if self._whole:
            self._read(trainer, epoch=trainer.current_epoch)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """What was logged; after a sanity check nothing, for no training is in progress."""
        self._read(trainer)

    on_train_end = on_validation_end

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The run says why it ended."""
        self.session.close(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The run is one finished file from here on."""
        self.session.close()

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints."""
        return {} if self.meter is None else {"run": str(self.meter.run or ""), "meter": self.meter.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint, before the training starts."""
        self._restored = state_dict

    def _go_back(self, trainer: Any) -> dict[str, Any]:
        """After a checkpoint was loaded: the run goes on there, or a new one begins there."""
        restored, self._restored, self.session.options = self._restored, {}, self._wishes
        if trainer.ckpt_path is None or not trainer.global_step or self._wishes.get("resume") is not None:
            return {}
        # Without a state of ours nobody knows the rounds: then every optimizer is taken to have stepped in each.
        state = restored.get("meter") or {"next_step": trainer.global_step // len(trainer.optimizers)}
        wishes = dict(self._wishes)
        if wishes["run"] == "auto":
            wishes["run"] = (restored.get("run") if self.meter is None else self.meter.run) or "auto"
        if wishes["run"] and (Path(wishes["run"]) / DATABASE_NAME).is_file():
            wishes |= {"resume": max(state["next_step"] - 1, 0), "overwrite": False}
        self.session = Session(**wishes)
        return dict(state)

    def _read(self, trainer: Any, **beside: int) -> None:
        self.session.tell(lambda meter: meter.log(self._fresh(trainer.logged_metrics, beside)))

    def _fresh(self, logged: Mapping[str, Tensor], beside: Mapping[str, int]) -> dict[str, Any]:
        """What was logged since the last look, for `logged_metrics` keeps what it once held.

        Every value is a new tensor, and while the last one is held no other has its address. The hooks are chosen so that no
        look makes Lightning compute an average: under DDP that is a meeting of all ranks.
        """
        fresh = {name: x for name, x in logged.items() if name not in self._seen or self._seen[name][1] != _mark(x)}
        self._seen |= {name: (x, _mark(x)) for name, x in fresh.items()}
        return {**beside, **fresh} if fresh else {}


def _mark(value: Tensor) -> tuple[int, int]:
    return value.data_ptr(), 0 if value.is_inference() else value._version


def _config(trainer: Any, module: Any) -> dict[str, Any]:
    """The hyperparameters of module and data, and the trainer's own settings."""
    kept = {**getattr(trainer.datamodule, "hparams", {}), **module.hparams}
    kept["trainer"] = {"module": type(module).__name__, **{name: getattr(trainer, name) for name in SETTINGS.split()}}
    return {name: x for name, x in kept.items() if not isinstance(x, nn.Module)}
