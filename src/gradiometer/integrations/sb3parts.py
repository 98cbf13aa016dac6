"""What an algorithm of Stable-Baselines3 is made of: networks, optimizers, which of them act and which judge."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture.blocks import named_parameters

__all__ = [
    "batches_in_epoch",
    "blocks",
    "config",
    "networks",
    "num_rollouts",
    "online_and_target",
    "optimizers",
]

# The first that is found in a parameter's name; what none describes is shared by actor and critic.
ROLES = {
    "target": r"^\w+_target\.",
    "ent_coef": r"^log_ent_coef",
    "critic": r"(^|\.)(value_net|vf_features_extractor|critic|lstm_critic|q_net|quantile_net)\b",
    "actor": r"(^|\.)(policy_net|action_net|log_std|actor|lstm_actor)\b",
}
CLOCKS = ("num_timesteps", "start_time", "verbose")


class _Named(nn.Module):
    """Tensors under names: a target network that nobody trains, or a coefficient that is no module."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._tensors = dict(tensors)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """All of them."""
        return iter(self._tensors.items())


def networks(model: Any) -> dict[str, nn.Module]:
    """The networks of the policy; SB3 leaves `requires_grad` on in its targets, which would look like lost gradients."""
    policy = _uncompiled(model.policy)
    parts = dict(policy.named_children())
    for name in [name for name in parts if name.endswith("_target")]:
        frozen = {inner: nn.Parameter(p.data, requires_grad=False) for inner, p in parts[name].named_parameters()}
        parts[name] = _Named(frozen)
    loose: dict[str, Tensor] = dict(policy.named_parameters(recurse=False))
    if getattr(model, "ent_coef_optimizer", None) is not None:
        loose["log_ent_coef"] = model.log_ent_coef
    return parts | {name: _Named({"value": x}) for name, x in loose.items()}


def optimizers(model: Any) -> list[Optimizer]:
    """Those of the policy or of its networks, and the one of SAC's entropy coefficient; the last one steps every time."""
    policy = _uncompiled(model.policy)
    owned = [getattr(part, "optimizer", None) for part in (policy, *policy.children())]
    return [one for one in (*owned, getattr(model, "ent_coef_optimizer", None)) if isinstance(one, Optimizer)]


def blocks(parts: Mapping[str, nn.Module], policy: Any) -> dict[str, list[Any]]:
    """Actor, critic, what they share (trunk), targets; a features extractor that is not shared is the actor's."""
    shared = getattr(_uncompiled(policy), "share_features_extractor", False)
    found: dict[str, list[Any]] = {}
    for name, p in named_parameters(parts).items():
        role = next((role for role, words in ROLES.items() if re.search(words, name)), "trunk")
        if "features_extractor" in name and role in ("actor", "trunk"):
            role = "trunk" if shared else "actor"
        found.setdefault(role, []).append(p)
    return found


def online_and_target(policy: Any) -> list[tuple[Tensor, Tensor]]:
    """Each trained tensor that has a copy in a target network, with that copy."""
    parts = dict(_uncompiled(policy).named_children())
    twins = [(part, parts[f"{name}_target"]) for name, part in parts.items() if f"{name}_target" in parts]
    return [pair for one, other in twins for pair in zip(one.parameters(), other.parameters(), strict=True)]


def config(model: Any) -> dict[str, Any]:
    """The algorithm's settings, and its schedules as they begin."""
    settings = {name: x for name, x in vars(model).items() if isinstance(x, (int, float, str)) and name[0] != "_"}
    schedules = {name: getattr(model, name, None) for name in ("learning_rate", "clip_range", "clip_range_vf")}
    begun = {name: float(schedule(1.0)) for name, schedule in schedules.items() if callable(schedule)}
    about = {"algorithm": type(model).__name__, "policy": type(model.policy).__name__}
    found = {**about, **settings, **begun, "policy_kwargs": str(model.policy_kwargs)}
    return {name: x for name, x in found.items() if name not in CLOCKS}


def num_rollouts(model: Any) -> int:
    """How many there have been before, for algorithms whose rollouts all have one length."""
    buffer = getattr(model, "rollout_buffer", None)
    return 0 if buffer is None else int(model.num_timesteps // (buffer.buffer_size * model.n_envs))


def batches_in_epoch(model: Any) -> int | None:
    """Of PPO, which goes over its rollout several times."""
    if not hasattr(model, "n_epochs"):
        return None
    batches: int = math.ceil(model.rollout_buffer.buffer_size * model.n_envs / model.batch_size)
    return batches


def _uncompiled(policy: Any) -> Any:
    return getattr(policy, "_orig_mod", policy)
