"""verl: `VERL_USE_EXTERNAL_MODULES=gradiometer.integrations.verl` in the environment of its
processes, or `actor_rollout_ref.model.external_lib=gradiometer.integrations.verl` in its config,
and each FSDP2 engine that trains is watched.

Actor and critic get a run each, below the folder `GRADIOMETER_RUN` (`runs/verl` without it),
written by rank 0: a row for each optimizer step, with the metrics of that update as verl means them
over ranks. What verl's driver logs (rewards, lengths, the validation) goes to both runs, at the
last step they had made. The driver is another process, so it leaves its metrics in a file of that
folder, where rank 0 finds them.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, count
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture.distributed import writes_here
from gradiometer.capture.hooks import harmless
from gradiometer.capture.watch import is_disabled, watch

__all__ = ["watch_engines"]

ENGINES = "verl.workers.engine.fsdp.transformer_impl"
WORKERS = "verl.workers.engine_workers"
TRACKING = "verl.utils.tracking"
TOLD = "verl.jsonl"
"""What the driver logged, a line each time, in the folder of the runs."""


def watch_engines() -> None:
    """Let every FSDP engine of verl watch itself from its `initialize` on; once a process."""
    engine, tracking = import_module(ENGINES).FSDPEngine, import_module(TRACKING).Tracking
    if is_disabled() or hasattr(engine.initialize, "__wrapped__"):
        return
    initialize, train_batch, log = engine.initialize, engine.train_batch, tracking.log

    @wraps(initialize)
    def initialized(self: Any) -> Any:
        answer = initialize(self)
        _watch(self)
        return answer

    @wraps(train_batch)
    def trained(self: Any, *args: Any, **kwargs: Any) -> Any:
        # verl initializes its critic before the actor's line of the config brings us here
        run = _watch(self)
        if run is not None:
            run.read_driver()
        answer = train_batch(self, *args, **kwargs)
        if run is not None and not hasattr(self, "_gradiometer_worker"):
            run.log_update(answer.get("metrics", {}))
        return answer

    @wraps(log)
    def logged(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        answer = log(self, data, *args, **kwargs)
        _tell_runs(data)
        return answer

    engine.initialize, engine.train_batch, tracking.log = initialized, trained, logged
    _listen_to_workers()


class EngineRun:
    """One engine's meter, and the way of verl's metrics into its run."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self.optimizer: Optimizer = engine.optimizer
        self.folder = folder
        self.meter = watch(engine.module, engine.optimizer, run=folder, config=_config(engine))
        self._own: set[str] = set()
        self._told = folder.with_name(TOLD)
        self._read_to = self._size()
        atexit.register(self.close)  # a worker is never told that the training is over

    @harmless
    def log_update(self, metrics: Mapping[str, Any]) -> None:
        """The metrics of one update."""
        values = dict(_numbers(metrics))
        self._own.update(values, (f"{self.folder.name}/{name}" for name in values))
        self.meter.log(values)

    @harmless
    def log_driver(self, values: Mapping[str, float]) -> None:
        """What the driver logged, but for means of what our rows have from each update."""
        self.meter.log({name: x for name, x in values.items() if name not in self._own})

    @harmless
    def read_driver(self) -> None:
        """Log what the driver has told since the last look; rank 0 keeps it."""
        if not writes_here() or self._size() <= self._read_to:
            return
        with self._told.open("rb") as file:
            file.seek(self._read_to)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for line in whole.splitlines():
            self.log_driver(json.loads(line))

    def close(self) -> None:
        """The last of the driver's metrics, and the end of the run."""
        atexit.unregister(self.close)
        self.read_driver()
        self.meter.close()

    def _size(self) -> int:
        return self._told.stat().st_size if self._told.exists() else 0


_OPEN: dict[Path, EngineRun] = {}
"""The runs of this process, by folder."""


def _watch(engine: Any) -> EngineRun | None:
    """Begin, unless that was done; an engine that was reset begins another run."""
    run: EngineRun | None = getattr(engine, "_gradiometer", None)
    if engine.optimizer is None or (run is not None and run.optimizer is engine.optimizer):
        return run
    if run is not None:
        run.close()
    role = "critic" if engine.model_config.model_type == "value_model" else "actor"
    names = chain([role], (f"{role}-{number}" for number in count(2)))
    folder = next(place for name in names if (place := _root() / name) not in _OPEN)
    engine._gradiometer = _OPEN[folder] = EngineRun(engine, folder)
    _listen_to_workers()
    return _OPEN[folder]


def _listen_to_workers() -> None:
    """verl's workers mean the metrics of an update over the ranks; an engine has its own rank's."""
    workers = sys.modules.get(WORKERS)
    if workers is None or hasattr(workers.TrainingWorker, "_gradiometer"):
        return
    train_batch = workers.TrainingWorker.train_batch

    @wraps(train_batch)  # with the marks by which verl's driver finds it
    def heard(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.engine._gradiometer_worker = True
        answer = train_batch(self, *args, **kwargs)
        run: EngineRun | None = getattr(self.engine, "_gradiometer", None)
        if run is not None and answer is not None:
            run.log_update(answer["metrics"])
        return answer

    workers.TrainingWorker.train_batch, workers.TrainingWorker._gradiometer = heard, True


@harmless
def _tell_runs(data: Mapping[str, Any]) -> None:
    """To the runs of this process, as in verl's SFT trainer, or else by way of the file."""
    values = dict(_numbers(data))
    for run in _OPEN.values():
        run.log_driver(values)
    if not _OPEN:
        _root().mkdir(parents=True, exist_ok=True)
        with (_root() / TOLD).open("a") as file:
            file.write(json.dumps(values) + "\n")


def _root() -> Path:
    return Path(os.environ.get("GRADIOMETER_RUN") or "runs/verl")


def _config(engine: Any) -> dict[str, Any]:
    kept = {name: getattr(engine.optimizer_config, name, None) for name in ("lr", "clip_grad")}
    return {"trainer": {"name": "verl", "strategy": engine.engine_config.strategy, **kept}}


def _numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers among metrics as verl's own log has them: a list has an entry for each rank or
    micro-batch, and a name with `max` or `min` in it says how they are put together."""
    for name, value in metrics.items():
        listed = list(value) if isinstance(value, list | tuple) else [value]
        if listed and hasattr(listed[0], "aggregate_dp"):
            listed = [type(listed[0]).aggregate_dp(listed)]
        nested = chain.from_iterable(x if isinstance(x, list) else [x] for x in listed)
        numbers = [float(x) for x in nested if _is_number(x)]
        if numbers:
            yield str(name), _together(str(name), numbers)


def _together(name: str, numbers: list[float]) -> float:
    if "max" in name:
        return max(numbers)
    return min(numbers) if "min" in name else sum(numbers) / len(numbers)


def _is_number(x: Any) -> bool:
    return isinstance(x, Real) or (isinstance(x, Tensor) and x.numel() == 1)


if find_spec("verl") is not None:  # verl imports this module by name and calls nothing in it
    watch_engines()
