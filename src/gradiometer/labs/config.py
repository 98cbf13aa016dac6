"""What all labs can be told, and `key=value` overrides on their config dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gradiometer.errors import MissingExtra, UnknownName, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["LabConfig", "configure", "keys_of", "torch_device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabConfig:
    """The settings every lab shares."""

    run: str | None = None
    """Folder the run is kept in; null keeps nothing."""
    seed: int = 1
    """Everything random comes from this number."""
    fault: str = "none"
    """The fault to train with, or none."""
    device: str = "cpu"
    """Where the tensors live: cpu, cuda, mps."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"seed={self.seed} is negative: use a whole number from 0 up")
        if self.run == "":
            raise UsageError("run= is empty: name a folder, or write run=null to keep nothing")


ConfigT = TypeVar("ConfigT", bound=LabConfig)


def configure(lab_config_class: type[ConfigT], overrides: Sequence[str]) -> ConfigT:
    """The lab's defaults with `key=value` overrides on top; keys are dotted, the last of two wins."""
    try:
        from omegaconf import OmegaConf
    except ModuleNotFoundError as error:
        raise MissingExtra("omegaconf", "labs", "key=value overrides") from error
    defaults = lab_config_class()
    known = keys_of(defaults)
    config = OmegaConf.structured(defaults)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UsageError(f"{override!r} is not an override: write key=value, for example seed=2")
        if key not in known:
            raise UnknownName("override", key, known)
        _set(config, key, text, expected=known[key])
    chosen = OmegaConf.to_object(config)
    assert isinstance(chosen, lab_config_class)
    return chosen


def keys_of(config: object) -> dict[str, str]:
    """The dotted keys of a config, each with the type it takes, as written in the dataclass."""
    return dict(_leaves(config))


def torch_device(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    import torch

    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # a torch built without CUDA asserts
        raise UsageError(f"device={name} cannot be used here ({str(error).splitlines()[0]}): try device=cpu") from error


def _leaves(config: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", str(field.type)


def _set(config: Any, key: str, text: str, *, expected: str) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigTypeError, GrammarParseError, InterpolationResolutionError, ValidationError
    from yaml import YAMLError  # type: ignore[import-untyped]

    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    OmegaConf.set_readonly(node, False)  # a frozen dataclass makes each of its nodes read-only
    try:
        # YAML would read run=007 as a number and run=a:b as a mapping: text stays as it was typed
        is_text = expected.startswith("str") and text != "null"
        node[leaf] = text if is_text else OmegaConf.from_dotlist([f"value={text}"]).value
        _ = node[leaf]  # resolves ${...} now, while we know whose it is
    except (ConfigTypeError, GrammarParseError, InterpolationResolutionError, ValidationError, YAMLError) as error:
        wanted = expected.replace(" | None", " or null")
        raise UsageError(f"override {key}={text}: found {text!r}, expected {wanted}") from error
