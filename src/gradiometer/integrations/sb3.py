"""Stable-Baselines3: `model.learn(..., callback=GradiometerCallback(run="runs/ppo"))` for PPO, A2C, DQN, SAC, TD3.

SB3 has no hook between backward and step, and none for an exception in `learn`. Capture is torch's own, and an exception
is seen with `with callback:` around `learn`, or else when the callback is collected or the process ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from numbers import Number
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture import hooks
from gradiometer.capture.isolation import guarded
from gradiometer.capture.meter import Meter
from gradiometer.errors import MissingExtra
from gradiometer.integrations import sb3parts
from gradiometer.integrations.session import Session, Unfinished

try:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import KVWriter
except ModuleNotFoundError as error:
    raise MissingExtra("stable-baselines3", "sb3", "the callback for Stable-Baselines3") from error

__all__ = ["GradiometerCallback"]


class GradiometerCallback(BaseCallback):
    """Keeps the gradients, and what SB3 logs, in the folder `run`; takes the keyword arguments of `gradiometer.watch`."""

    def __init__(self, run: str | os.PathLike[str] | None = "auto", **options: Any) -> None:
        super().__init__()
        self.session = Session(run, **options)
        self._reader: _Reader | None = None

    @property
    def meter(self) -> Meter | None:
        """Of the training in progress, or else of the last one."""
        return self.session.meter

    def _on_training_start(self) -> None:
        self.session.close(Unfinished("a training began anew before this one had ended"))
        networks, optimizers = sb3parts.networks(self.model), sb3parts.optimizers(self.model)
        blocks, config = sb3parts.blocks(networks, self.model.policy), sb3parts.config(self.model)
        meter = self.session.start(networks, optimizers, config=config, seed=self.model.seed, blocks=blocks)
        self._reader = _Reader(meter, self.model, self._reader)
        self.session.at_end(hooks.observe_optimizer(optimizers[-1], self._reader))

    def _on_rollout_start(self) -> None:
        outputs, reader = self.model.logger.output_formats, self._reader
        if reader is not None and reader not in outputs:  # looked at here, for a logger may be exchanged at any time
            outputs.append(reader)
            self.session.at_end(lambda: outputs.remove(reader) if reader in outputs else None)

    def _on_rollout_end(self) -> None:
        if self._reader is not None:
            self._reader.rollout_ended()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        if self._reader is not None:
            self._reader.read_rest(self.model.logger.name_to_value)
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.session.close(error)

    def __reduce__(self) -> tuple[Any, ...]:
        """The wishes only: SB3 saves what hangs on a model, and a meter holds threads and hooks."""
        return partial(GradiometerCallback, **self.session.options), ()


class _Reader(KVWriter):
    """One more output of SB3's logger, told of steps too. It holds no callback, so that a lost one can be collected."""

    def __init__(self, meter: Meter, model: Any, before: _Reader | None) -> None:
        self.seconds = self.entered = 0.0
        self.give_up = meter.give_up
        self._meter, self._model = meter, model
        self._read: frozenset[str] = frozenset() if before is None else before._read
        """What was read at the end of the last training and a logger that lives on dumps before the next update."""
        self._rollout: int = sb3parts.num_rollouts(model) - 1 if before is None else before._rollout
        self._step = 0
        """The coming one, counted from the end of the rollout."""
        self._num_batches = sb3parts.batches_in_epoch(model)

    @guarded
    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """What SB3 says of its updates belongs to the last step; the rest to the data that the next one starts from."""
        fresh = {name: x for name, x in key_values.items() if name not in self._read and _is_number(x)}
        self._read = frozenset()
        self._log_updates(fresh)
        self._coming_step(step, at=0)
        self._meter.record({name: x for name, x in fresh.items() if not name.startswith("train/")})

    def close(self) -> None:
        """The logger has nothing to close here."""

    @guarded
    def read_rest(self, values: Mapping[str, Any]) -> None:
        """What the last updates logged, which SB3 would dump with the next rollout."""
        self._log_updates({name: x for name, x in values.items() if name not in self._read})
        self._read = frozenset(name for name in values if name.startswith("train/"))

    def _log_updates(self, values: Mapping[str, Any]) -> None:
        updates = {name: x for name, x in values.items() if name.startswith("train/") and _is_number(x)}
        if pairs := sb3parts.online_and_target(self._model.policy) if self._step else []:
            with torch.no_grad():
                apart = torch.stack([(a - b).norm() for a, b in pairs]).norm()
                updates["target_distance"] = apart / torch.stack([a.norm() for a, _ in pairs]).norm()
        self._meter.log(updates)

    def rollout_ended(self) -> None:
        """The coming steps use new data."""
        self._rollout, self._step = self._rollout + 1, 0

    def _coming_step(self, env_steps: int, at: int) -> None:
        epoch = None if self._num_batches is None else at // self._num_batches
        self._meter.at(env_steps=env_steps, rollout=max(self._rollout, 0), epoch=epoch)

    @guarded
    def before_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Where the step lies. PPO goes over its rollout several times, in batches of a known number."""
        if self._step % (self._num_batches or sys.maxsize) == 0:
            self._coming_step(self._model.num_timesteps, at=self._step)
        self._step += 1
        self._read = frozenset()

    def after_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Nothing is to be said."""


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) or (isinstance(value, Tensor) and value.numel() == 1)
