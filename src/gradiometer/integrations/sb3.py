"""Stable-Baselines3: `model.learn(..., callback=GradiometerCallback(run="runs/ppo"))` for PPO, A2C,
DQN, SAC, TD3.

SB3 has no hook between backward and step, and none for an exception in `learn`. Capture is torch's
own, and an exception is seen with `with callback:` around `learn`, or else when the callback is
collected or the process ends.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture import hooks
from gradiometer.capture.blocks import named_parameters
from gradiometer.capture.hooks import guarded
from gradiometer.capture.meter import Meter
from gradiometer.errors import MissingExtra
from gradiometer.integrations.session import Session, SessionContext, Unfinished

try:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import KVWriter
except ModuleNotFoundError as error:
    raise MissingExtra("stable-baselines3", "sb3", "the callback for Stable-Baselines3") from error

__all__ = ["GradiometerCallback"]

# The first that is found in a parameter's name; what none describes is shared by actor and critic.
ROLES = {
    "target": r"^\w+_target\.",
    "ent_coef": r"^log_ent_coef",
    "critic": r"(^|\.)(value_net|vf_features_extractor|critic|lstm_critic|q_net|quantile_net)\b",
    "actor": r"(^|\.)(policy_net|action_net|log_std|actor|lstm_actor)\b",
}
CLOCKS = ("num_timesteps", "start_time", "verbose")


class GradiometerCallback(SessionContext, BaseCallback):
    """Keeps gradients and what SB3 logs in the folder `run`; takes the keywords of `gm.watch`."""

    def __init__(self, run: str | os.PathLike[str] | None = "auto", **options: Any) -> None:
        super().__init__()
        self.session = Session(run, **options)
        self._reader: _Reader | None = None

    def _on_training_start(self) -> None:
        self.session.close(Unfinished("a training began anew before this one had ended"))
        networks, optimizers = _networks(self.model), _optimizers(self.model)
        meter = self.session.start(
            networks,
            optimizers,
            config=_config(self.model),
            seed=self.model.seed,
            blocks=_blocks(networks, self.model.policy),
        )
        self._reader = _Reader(meter, self.model, self._reader)
        self.session.at_end(hooks.observe_optimizer(optimizers[-1], self._reader))

    def _on_rollout_start(self) -> None:
        # Looked at here, for a logger may be exchanged at any time.
        outputs, reader = self.model.logger.output_formats, self._reader
        if reader is not None and reader not in outputs:
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

    def __reduce__(self) -> tuple[Any, ...]:
        """The options only: SB3 saves what hangs on a model, and a meter holds threads."""
        return partial(GradiometerCallback, **self.session.options), ()


class _Reader(KVWriter):
    """An output of SB3's logger, told of steps too; it keeps no callback from being collected."""

    def __init__(self, meter: Meter, model: Any, before: _Reader | None) -> None:
        self.seconds = self.entered = 0.0
        self.give_up = meter.give_up
        self._meter, self._model = meter, model
        self._read: frozenset[str] = frozenset() if before is None else before._read
        """Read at the end of the last training; a logger that lives on will dump it again."""
        self._rollout: int = _num_rollouts(model) - 1 if before is None else before._rollout
        self._step = 0
        """The coming one, counted from the end of the rollout."""
        self._num_batches = _batches_in_epoch(model)

    @guarded
    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """What SB3 says of updates belongs to the last step, the rest to the data of the next."""
        unread = {name: x for name, x in key_values.items() if name not in self._read}
        fresh = {name: x for name, x in unread.items() if _is_number(x)}
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
        own = {name: x for name, x in values.items() if name.startswith("train/")}
        updates = {name: x for name, x in own.items() if _is_number(x)}
        if pairs := _online_and_target(self._model.policy) if self._step else []:
            with torch.no_grad():
                apart = torch.stack([(a - b).norm() for a, b in pairs]).norm()
                size = torch.stack([a.norm() for a, _ in pairs]).norm()
                updates["target_distance"] = apart / size
        self._meter.log(updates)

    def rollout_ended(self) -> None:
        """The coming steps use new data."""
        self._rollout, self._step = self._rollout + 1, 0

    def _coming_step(self, env_steps: int, at: int) -> None:
        epoch = None if self._num_batches is None else at // self._num_batches
        self._meter.at(env_steps=env_steps, rollout=max(self._rollout, 0), epoch=epoch)

    @guarded
    def before_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Where the step lies: PPO goes over its rollout in epochs of a known number of batches."""
        if self._step % (self._num_batches or sys.maxsize) == 0:
            self._coming_step(self._model.num_timesteps, at=self._step)
        self._step += 1
        self._read = frozenset()

    def after_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Nothing is to be said."""


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) or (isinstance(value, Tensor) and value.numel() == 1)


class _Named(nn.Module):
    """Tensors under names: a target network that nobody trains, or a loose coefficient."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._tensors = dict(tensors)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """All of them."""
        return iter(self._tensors.items())


def _networks(model: Any) -> dict[str, nn.Module]:
    """The networks of the policy; targets as frozen, for SB3 leaves `requires_grad` on in them."""
    policy = _uncompiled(model.policy)
    parts = dict(policy.named_children())
    for name in [name for name in parts if name.endswith("_target")]:
        named = parts[name].named_parameters()
        frozen = {inner: nn.Parameter(p.data, requires_grad=False) for inner, p in named}
        parts[name] = _Named(frozen)
    loose: dict[str, Tensor] = dict(policy.named_parameters(recurse=False))
    if getattr(model, "ent_coef_optimizer", None) is not None:
        loose["log_ent_coef"] = model.log_ent_coef
    return parts | {name: _Named({"value": x}) for name, x in loose.items()}


def _optimizers(model: Any) -> list[Optimizer]:
    """Those of policy, networks and SAC's entropy coefficient; the last one steps every time."""
    policy = _uncompiled(model.policy)
    owned = [getattr(part, "optimizer", None) for part in (policy, *policy.children())]
    found = (*owned, getattr(model, "ent_coef_optimizer", None))
    return [one for one in found if isinstance(one, Optimizer)]


def _blocks(parts: Mapping[str, nn.Module], policy: Any) -> dict[str, list[Any]]:
    """Actor, critic, trunk (what they share), targets; an extractor not shared is the actor's."""
    shared = getattr(_uncompiled(policy), "share_features_extractor", False)
    found: dict[str, list[Any]] = {}
    for name, p in named_parameters(parts).items():
        role = next((role for role, words in ROLES.items() if re.search(words, name)), "trunk")
        if "features_extractor" in name and role in ("actor", "trunk"):
            role = "trunk" if shared else "actor"
        found.setdefault(role, []).append(p)
    return found


def _online_and_target(policy: Any) -> list[tuple[Tensor, Tensor]]:
    """Each trained tensor that has a copy in a target network, with that copy."""
    parts = dict(_uncompiled(policy).named_children())
    targets = {name: parts.get(f"{name}_target") for name in parts}
    twins = [(parts[name], other) for name, other in targets.items() if other is not None]
    pairs = (zip(one.parameters(), other.parameters(), strict=True) for one, other in twins)
    return [pair for several in pairs for pair in several]


def _config(model: Any) -> dict[str, Any]:
    """The algorithm's settings, and its schedules as they begin."""
    own = {name: x for name, x in vars(model).items() if name[0] != "_"}
    settings = {name: x for name, x in own.items() if isinstance(x, (int, float, str))}
    names = ("learning_rate", "clip_range", "clip_range_vf")
    schedules = {name: getattr(model, name, None) for name in names}
    begun = {name: float(begin(1.0)) for name, begin in schedules.items() if callable(begin)}
    about = {"algorithm": type(model).__name__, "policy": type(model.policy).__name__}
    found = {**about, **settings, **begun, "policy_kwargs": str(model.policy_kwargs)}
    return {name: x for name, x in found.items() if name not in CLOCKS}


def _num_rollouts(model: Any) -> int:
    """How many there have been before, for algorithms whose rollouts all have one length."""
    buffer = getattr(model, "rollout_buffer", None)
    return 0 if buffer is None else int(model.num_timesteps // (buffer.buffer_size * model.n_envs))


def _batches_in_epoch(model: Any) -> int | None:
    """Of PPO, which goes over its rollout several times."""
    if not hasattr(model, "n_epochs"):
        return None
    batches: int = math.ceil(model.rollout_buffer.buffer_size * model.n_envs / model.batch_size)
    return batches


def _uncompiled(policy: Any) -> Any:
    return getattr(policy, "_orig_mod", policy)
