"""verl: `actor_rollout_ref.model.external_lib=gradiometer.integrations.verl` in its config (and
`critic.model.external_lib`), and each FSDP2 engine that trains is watched.

verl imports that module before it builds a model. Actor and critic get a run each, below the folder
`GRADIOMETER_RUN` (`runs/verl` without it), written by rank 0: a row for each optimizer step, and
the metrics that the engine's update returns.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor

from gradiometer.capture.hooks import harmless
from gradiometer.capture.meter import Meter
from gradiometer.capture.watch import watch

__all__ = ["watch_engines"]

ENGINES = "verl.workers.engine.fsdp.transformer_impl"


def watch_engines() -> None:
    """Let every FSDP engine of verl watch itself from its `initialize` on; once a process."""
    engine = import_module(ENGINES).FSDPEngine
    if hasattr(engine.initialize, "__wrapped__"):
        return
    initialize, train_batch = engine.initialize, engine.train_batch

    @wraps(initialize)
    def initialized(self: Any) -> Any:
        answer = initialize(self)
        if self.optimizer is not None:
            meter = watch(self.module, self.optimizer, run=_folder(self), config=_config(self))
            atexit.register(meter.close)  # a worker is never told that the training is over
            self._gradiometer = meter
        return answer

    @wraps(train_batch)
    def trained(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = train_batch(self, *args, **kwargs)
        _log(getattr(self, "_gradiometer", None), answer)
        return answer

    engine.initialize, engine.train_batch = initialized, trained


@harmless
def _log(meter: Meter | None, answer: Any) -> None:
    if meter is not None:
        meter.log(_scalars(answer))


def _folder(engine: Any) -> Path:
    role = "critic" if engine.model_config.model_type == "value_model" else "actor"
    return Path(os.environ.get("GRADIOMETER_RUN") or "runs/verl") / role


def _config(engine: Any) -> dict[str, Any]:
    kept = {name: getattr(engine.optimizer_config, name, None) for name in ("lr", "clip_grad")}
    return {"trainer": {"name": "verl", "strategy": engine.engine_config.strategy, **kept}}


def _scalars(answer: Any) -> dict[str, float]:
    """Means of the numbers that the update returned, under verl's names."""
    metrics = answer.get("metrics", {}) if isinstance(answer, Mapping) else {}
    found: dict[str, float] = {}
    for name, value in metrics.items():
        value = value.aggregate() if hasattr(value, "aggregate") else value
        listed = value if isinstance(value, list) else [value]
        values = [float(x) for x in listed if _is_number(x)]
        if values:
            found[str(name)] = sum(values) / len(values)
    return found


def _is_number(x: Any) -> bool:
    return isinstance(x, Real) or (isinstance(x, Tensor) and x.numel() == 1)


if find_spec("verl") is not None:  # verl imports this module by name and calls nothing in it
    watch_engines()
