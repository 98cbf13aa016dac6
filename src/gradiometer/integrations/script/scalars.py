"""Scalars that the script gives to a logger: overheard there, under the script's names, and never
replaced.

A logger that calls another one (SB3's writes to TensorBoard) is heard once, at the outermost.
Printed lines count only in a script that has no logger, because they repeat what loggers get.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Protocol

from gradiometer.integrations.script.boundary import Boundary
from gradiometer.metrics import resolve

__all__ = ["SOURCES", "Loggers", "ScalarReceiver"]

Read = Callable[..., tuple[Mapping[str, Any], dict[str, Any]]]


class ScalarReceiver(Protocol):
    """Who keeps them; `env_steps` and `epoch` say where in the training, if the logger knows."""

    @property
    def has_optimizer(self) -> bool:
        """Whether there is anything that could train."""

    def log(
        self, values: Mapping[str, Any], *, env_steps: int | None = None, epoch: int | None = None
    ) -> None: ...


def _add_scalar(
    writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any
) -> Any:
    # CleanRL's x axis, and that of what is written like it, is environment steps; of others nobody
    # knows.
    return {tag: scalar_value}, {"env_steps": global_step} if tag.startswith("charts/") else {}


def _add_scalars(
    writer: Any, main_tag: str, tag_scalar_dict: Mapping[str, Any], *_: Any, **__: Any
) -> Any:
    return {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, {}


def _dump(logger: Any, step: int = 0) -> Any:
    return dict(logger.name_to_value), {"env_steps": step or None}


def _on_log(
    handler: Any,
    args: Any,
    state: Any,
    control: Any,
    logs: Mapping[str, Any] | None = None,
    **_: Any,
) -> Any:
    values = dict(logs or {})
    return values, {"epoch": values.pop("epoch", None)}


def _log(run: Any, data: Mapping[str, Any], *_: Any, **__: Any) -> Any:
    return data, {}


def _log_metrics(connector: Any, metrics: Mapping[str, Any], *_: Any, **__: Any) -> Any:
    values = dict(metrics)
    values.pop("step", None)
    return values, {"epoch": values.pop("epoch", None)}


_TENSORBOARD: dict[str, Read] = {"add_scalar": _add_scalar, "add_scalars": _add_scalars}
_LIGHTNING = "trainer.connectors.logger_connector.logger_connector"
SOURCES: dict[str, tuple[str, dict[str, Read]]] = {
    "torch.utils.tensorboard.writer": ("SummaryWriter", _TENSORBOARD),
    "tensorboardX.writer": ("SummaryWriter", _TENSORBOARD),
    "stable_baselines3.common.logger": ("Logger", {"dump": _dump}),
    "transformers.trainer_callback": ("CallbackHandler", {"on_log": _on_log}),
    "wandb.sdk.wandb_run": ("Run", {"log": _log}),
    f"lightning.pytorch.{_LIGHTNING}": ("_LoggerConnector", {"log_metrics": _log_metrics}),
    f"pytorch_lightning.{_LIGHTNING}": ("_LoggerConnector", {"log_metrics": _log_metrics}),
}
"""Module, class, and how each method's arguments become names and numbers."""


class Loggers:
    """What the loggers of this process are given; `receiver` is there when torch is."""

    def __init__(self, boundary: Boundary) -> None:
        self.receiver: ScalarReceiver | None = None
        self._boundary = boundary
        self._depth = threading.local()
        self._exists = False

    def observe(self, module: ModuleType) -> None:
        """Overhear the class of SOURCES in this module."""
        name, methods = SOURCES[module.__name__]
        made: Any = getattr(module, name, None)
        for method, read in {"__init__": None, **methods}.items():
            if callable(original := getattr(made, method, None)):
                setattr(made, method, self._observed(original, read))

    def printed(self, values: Mapping[str, float]) -> None:
        """A line on stdout. What comes before there is an optimizer is about settings."""
        if not self._exists and self.receiver is not None and self.receiver.has_optimizer:
            self._hand_over(values, {})

    def _observed(self, method: Callable[..., Any], read: Read | None) -> Callable[..., Any]:
        @self._boundary
        def note(*args: Any, **kwargs: Any) -> None:
            self._exists = True
            if read is not None:
                with suppress(TypeError):  # called wrongly: the logger itself will say so
                    self._hand_over(*read(*args, **kwargs))

        @functools.wraps(method)
        def observed(*args: Any, **kwargs: Any) -> Any:
            with self._inside() as outermost:
                if outermost:
                    note(*args, **kwargs)
                return method(*args, **kwargs)

        return observed

    @contextmanager
    def _inside(self) -> Iterator[bool]:
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        try:
            yield depth == 0
        finally:
            self._depth.value = depth

    def _hand_over(self, values: Mapping[str, Any], where: dict[str, Any]) -> None:
        numbers = {name: _number(name, value) for name, value in values.items()}
        found = {name: number for name, number in numbers.items() if number is not None}
        if self.receiver is not None and found:
            known = {axis: int(place) for axis, place in where.items() if place is not None}
            self.receiver.log(found, **known)


def _number(name: object, value: Any) -> Any:
    """A number, or a tensor of one; None for anything else, and for what we measure ourselves."""
    if not isinstance(name, str) or isinstance(value, bool | str):
        return None
    if isinstance(value, int | float):
        number: Any = value
    elif hasattr(value, "numel") and callable(value.numel):  # a tensor: read at the next sync
        number = value.detach() if value.numel() == 1 else None
    elif getattr(value, "size", None) == 1 and hasattr(value, "item"):
        number = value.item()
    else:
        return None
    return None if _is_measured(name) or isinstance(number, bool | str) else number


@functools.cache
def _is_measured(name: str) -> bool:
    known = resolve(name)
    return known is not None and known[1] is None and known[0].origin != "logged"
