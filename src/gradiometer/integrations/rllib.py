"""RLlib's new API stack: `watch_learners(config, run="runs/ppo")` before `config.build_algo()`.

The meter lives where the gradients are, in the learners. RLlib's learners form a group of
torch.distributed, so several of them are ranks of one training: rank 0 keeps the one run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from gradiometer.capture import hooks
from gradiometer.errors import MissingExtra, UsageError
from gradiometer.integrations.session import Session

try:
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.utils.torch_utils import compute_global_norm
except ImportError as error:
    raise MissingExtra("ray[rllib]", "rllib", "the callback for RLlib") from error

__all__ = ["LearnerCallback", "watch_learners"]

SETTINGS = (
    *("env", "lr", "gamma", "lambda_", "num_learners", "num_env_runners", "num_epochs"),
    *("train_batch_size_per_learner", "minibatch_size", "clip_param", "vf_clip_param", "seed"),
    *("entropy_coeff", "vf_loss_coeff", "use_kl_loss", "kl_coeff", "grad_clip", "grad_clip_by"),
)
ENV_STEPS = "num_env_steps_sampled_lifetime"
GROUPS = ("env_runners", "learners")
"""Parts of a result whose numbers are kept, under RLlib's names."""
_sessions: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()
"""Of the learners of this process."""

T = TypeVar("T")


def watch_learners(config: T, run: str | os.PathLike[str] | None = "auto", **options: Any) -> T:
    """Keep the gradients of every learner, and what RLlib reports, in the folder `run`; takes the
    keyword arguments of `gm.watch`. Callbacks that the config has stay."""
    given: Any = config
    if not hasattr(given, "callbacks_class"):
        raise UsageError(f"watch_learners takes RLlib's AlgorithmConfig; found {given!r:.60}")
    there = given.callbacks_class
    before = list(there) if isinstance(there, list | tuple) else [there]
    place = None if run is None else os.fspath(run)
    given.callbacks([*before, partial(LearnerCallback, place, **options)])
    return config


class LearnerCallback(RLlibCallback):
    """Starts a meter in every learner, and hands it what RLlib reports."""

    def __init__(self, run: str | os.PathLike[str] | None = "auto", **options: Any) -> None:
        super().__init__()
        self._session = Session(run, **options)  # checks the options; learners get one each

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        """Watch the learners, until the algorithm lets go of them."""
        group, config = algorithm.learner_group, algorithm.config
        if group is None:
            raise UsageError("RLlib's old API stack has no learners: use the new one")
        settings = {name: getattr(config, name, None) for name in SETTINGS}
        told = {"config": {key: value for key, value in settings.items() if value is not None}}
        told["config"]["algorithm"] = type(config).__name__
        _results(group.foreach_learner(partial(_start, self._session.options, told["config"])))
        shut_down = group.shutdown

        def shutdown() -> None:
            if not group._is_shut_down:
                group.foreach_learner(_end)
            shut_down()

        group.shutdown = shutdown

    def on_train_result(self, *, algorithm: Any, result: Mapping[str, Any], **kwargs: Any) -> None:
        """RLlib's numbers belong to the steps that led to them."""
        values = {}
        for group in GROUPS:
            values.update(_numbers(result.get(group, {}), group))
        sampled = result.get(ENV_STEPS)
        env_steps = int(sampled) if isinstance(sampled, int | float) else None
        algorithm.learner_group.foreach_learner(partial(_log, values, env_steps))


def _start(options: Mapping[str, Any], config: Mapping[str, Any], learner: Any) -> None:
    modules, optimizers = {}, []
    for key, module in learner.module.items():
        modules[str(key)] = _torch_module(module)
        optimizers += [optimizer for _, optimizer in learner.get_optimizers_for_module(key)]
    session = _sessions[learner] = Session(**options)
    model = next(iter(modules.values())) if len(modules) == 1 else modules
    session.start(model, optimizers, config=config, seed=config.get("seed"))
    inner = learner._get_clip_function()
    learner._get_clip_function = lambda: partial(_clip, inner)


def _clip(inner: Callable[..., Any], gradients: Any, *, grad_clip: Any, grad_clip_by: str) -> Any:
    """RLlib scales gradients itself; a clip of each tensor by its own norm is not told."""

    def clip() -> Any:
        return inner(gradients, grad_clip=grad_clip, grad_clip_by=grad_clip_by)

    parameters = [parameter for parameter, grad in gradients.items() if grad is not None]
    if grad_clip is None or grad_clip_by == "norm" or not parameters:
        return clip()
    how: dict[str, Any] = {"kind": "value", "threshold": grad_clip}
    if grad_clip_by == "global_norm":
        norm = compute_global_norm([parameter.grad for parameter in parameters])
        how = {"kind": "norm", "threshold": grad_clip, "total_norm": norm}
    return hooks.observed_clip(clip, parameters, **how)


def _torch_module(module: Any) -> Any:
    """Without RLlib's wrapper for several learners, whose parameters are the same."""
    return module.unwrapped() if hasattr(module, "unwrapped") else module


def _log(values: Mapping[str, float], env_steps: int | None, learner: Any) -> None:
    session = _sessions.get(learner)
    if session is not None:
        session.log(values)
        session.at(env_steps=env_steps)


def _end(learner: Any) -> None:
    session = _sessions.pop(learner, None)
    if session is not None:
        session.close()


def _numbers(content: Any, prefix: str) -> dict[str, float]:
    """The numbers of a nested result, by their path."""
    if isinstance(content, Mapping):
        found: dict[str, float] = {}
        for key, value in content.items():
            found.update(_numbers(value, f"{prefix}/{key}"))
        return found
    try:
        return {} if isinstance(content, bool | str) else {prefix: float(content)}
    except (TypeError, ValueError):
        return {}


def _results(answers: Any) -> None:
    """Raise what a learner raised."""
    for answer in answers:
        if not answer.ok:
            raise answer.get()
