"""Lightning and rl4co: `Trainer(..., callbacks=[GradiometerCallback(run="runs/pomo")])`, whichever
package it comes from.

Lightning makes the gradients inside `optimizer.step(closure)` and clips them there; the meter sees
both by itself. Step n is the n-th round of optimizer steps, from 0: with one optimizer
`trainer.global_step` as it is before the step.
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
from gradiometer.integrations import rl4co
from gradiometer.integrations.session import Session
from gradiometer.store.database import DATABASE_NAME

__all__ = ["GradiometerCallback"]

SETTINGS = (
    "max_epochs max_steps accumulate_grad_batches gradient_clip_val gradient_clip_algorithm"
    " precision world_size"
)


def _callback_class() -> Any:
    """Of both packages, for their trainers look at the class: the same code under two names."""
    packages = ("lightning.pytorch", "pytorch_lightning")
    names = [name for name in packages if find_spec(name.partition(".")[0])]
    if not names:
        raise MissingExtra("lightning", "lightning", "the callback for Lightning and rl4co")
    return type("Callback", tuple(import_module(name).Callback for name in names), {})


class GradiometerCallback(_callback_class()):  # type: ignore[misc]
    """Keeps the gradients of `trainer.fit`, and what the module logs, in the folder `run`; takes
    the keywords of `watch`.

    `fit(..., ckpt_path=...)` goes on with the run after the checkpoint's step and removes what lies
    beyond. `fit` again with the same module goes on after the last step. An exception in the
    training is an event of the run, which is then closed.
    """

    def __init__(self, run: str | os.PathLike[str] | None = "auto", **options: Any) -> None:
        self.session = Session(run, **options)
        self._options = self.session.options
        self._seen: dict[str, tuple[Tensor, Any]] = {}
        self._restored: dict[str, Any] = {}
        self._global_step, self._whole, self._late = 0, True, True
        """Lightning's step; whether the last batch brought one; whether others log after us."""

    @property
    def meter(self) -> Meter | None:
        """Of the training in progress, or else of the last one."""
        return self.session.meter

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """After the sanity check, and after a checkpoint was restored."""
        self._seen, self._global_step, self._whole = {}, trainer.global_step, True
        hooks = (type(one).on_train_batch_end for one in (pl_module, *trainer.callbacks))
        others = {hook.__module__.partition(".")[0] for hook in hooks}
        self._late = bool(others - {"lightning", "pytorch_lightning", "gradiometer"})
        state, model = self._go_back(trainer), rl4co.trained(trainer.model, pl_module)
        seed = os.environ.get("PL_GLOBAL_SEED", "")
        size = getattr(trainer.train_dataloader, "batch_size", None)
        self.session.start(
            model,
            trainer.optimizers,
            config=_config(trainer, pl_module),
            seed=int(seed) if seed.isdigit() else None,
            blocks=rl4co.blocks(model, pl_module),
            micro_batch_size=size if pl_module.automatic_optimization else None,
            # with a closure the scratch that would hold the last gradient is not free
            direction="sketch",
        )
        if step := state.get("next_step"):
            self.session.tell(
                lambda meter: (
                    meter.load_state_dict(state) if "analyst" in state else meter.step(step)
                )
            )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Read what others logged after our look at the last batch, and epoch averages."""
        if self._whole and (self._late or batch_idx == 0):
            self._read(trainer)
        if rl4co.is_rl4co(pl_module):
            self.session.at(rollout=trainer.fit_loop.total_batch_idx)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lightning logs nothing of a batch that only accumulates, if the step is its own."""
        stepped = trainer.global_step != self._global_step
        self._whole = not pl_module.automatic_optimization or stepped
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
        if self.meter is None:
            return {}
        return {"run": str(self.meter.run or ""), "meter": self.meter.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint, before the training starts."""
        self._restored = state_dict

    def _go_back(self, trainer: Any) -> dict[str, Any]:
        """After a checkpoint was loaded: the run goes on there, or a new one begins there."""
        restored, self._restored, self.session.options = self._restored, {}, self._options
        resumed = trainer.ckpt_path is not None and trainer.global_step
        if not resumed or self._options.get("resume") is not None:
            return {}
        # Without a state of ours nobody knows the rounds: then every optimizer is taken to have
        # stepped in each.
        rounds = trainer.global_step // len(trainer.optimizers)
        state = restored.get("meter") or {"next_step": rounds}
        options = dict(self._options)
        if options["run"] == "auto":
            last = restored.get("run") if self.meter is None else self.meter.run
            options["run"] = last or "auto"
        if options["run"] and (Path(options["run"]) / DATABASE_NAME).is_file():
            options |= {"resume": max(state["next_step"] - 1, 0), "overwrite": False}
        self.session = Session(**options)
        return dict(state)

    def _read(self, trainer: Any, **beside: int) -> None:
        self.session.tell(lambda meter: meter.log(self._fresh(trainer.logged_metrics, beside)))

    def _fresh(self, logged: Mapping[str, Tensor], beside: Mapping[str, int]) -> dict[str, Any]:
        """What was logged since the last look, for `logged_metrics` keeps what it once held.

        Every value is a new tensor, and while the last one is held no other has its address. The
        hooks are chosen so that no look makes Lightning compute an average: under DDP that is a
        meeting of all ranks.
        """
        marks = {name: seen[1] for name, seen in self._seen.items()}
        fresh = {name: x for name, x in logged.items() if marks.get(name) != _mark(x)}
        self._seen |= {name: (x, _mark(x)) for name, x in fresh.items()}
        return {**beside, **fresh} if fresh else {}


def _mark(value: Tensor) -> tuple[int, int]:
    return value.data_ptr(), 0 if value.is_inference() else value._version


def _config(trainer: Any, module: Any) -> dict[str, Any]:
    """The hyperparameters of module and data, and the trainer's own settings."""
    kept = {**getattr(trainer.datamodule, "hparams", {}), **module.hparams}
    settings = {name: getattr(trainer, name) for name in SETTINGS.split()}
    kept["trainer"] = {"module": type(module).__name__, **settings}
    return {name: x for name, x in kept.items() if not isinstance(x, nn.Module)}
