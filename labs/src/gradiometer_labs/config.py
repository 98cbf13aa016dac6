"""What all labs can be told, and `key=value` overrides on their config dataclasses."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from gradiometer.errors import MissingExtra, UnknownName, UsageError, close_names
from gradiometer.metrics import TIERS
from gradiometer.store.sinks import KNOWN, Sink
from gradiometer.store.writer import keeps_nothing
from gradiometer.words import some

if TYPE_CHECKING:
    import torch

__all__ = [
    "LabConfig",
    "SettingsCheck",
    "TrainingProgress",
    "configure",
    "keys_of",
    "overrides_of",
    "torch_device",
    "tracker_names",
]

LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabConfig:
    """The settings every lab shares."""

    run: str | None = None
    """Folder the run is kept in; none, or null, keeps nothing."""
    overwrite: bool = False
    """Start afresh where the folder holds a run already."""
    seed: int = 1
    """Everything random comes from this number."""
    fault: str = "none"
    """The fault to train with, or none."""
    device: str = "cpu"
    """Where the tensors live: cpu, cuda, mps."""
    start: str | None = None
    """A file of weights to start from, see weights.py; null starts from scratch."""
    every: int = 10
    """The meter measures one optimizer step in this many."""
    tier: str = "standard"
    """How much the meter measures: light, standard or deep."""
    sinks: str = ""
    """Trackers the run goes to as well: wandb, tensorboard, mlflow, trackio, jsonl; several with
    commas between, as in [wandb,jsonl]."""

    CONFIG_NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What --config-name can be: overrides under a name, applied first."""
    PRESETS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What preset= can be, where a lab has it: overrides applied next."""
    NO_EFFECT: ClassVar[frozenset[str]] = frozenset()
    """Keys that are taken because commands written for other trainers have them, and that do
    nothing here."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"seed={self.seed} is negative: use a whole number from 0 up")
        if self.seed > LARGEST_SEED:
            raise UsageError(
                f"seed={self.seed} does not fit into 64 bits: use a whole number up to"
                f" {LARGEST_SEED}"
            )
        if self.run == "":
            raise UsageError("run= is empty: name a folder, or write run=none to keep nothing")
        tracker_names("sinks", self.sinks)
        check = SettingsCheck(self)
        check.at_least(1, "every")
        check.one_of(TIERS, "tier")

    @property
    def trackers(self) -> list[str | Sink]:
        """What `gm.watch` is given as sinks."""
        return list(tracker_names("sinks", self.sinks))

    @property
    def run_name(self) -> str | None:
        """What the run's folder is called when run= does not say; null leaves it to the clock."""
        return None

    @classmethod
    def no_effect(cls, overrides: Sequence[str]) -> list[str]:
        """The keys among `key=value` overrides that this lab takes and does not use, each once."""
        return list(dict.fromkeys(key for key, _ in map(_parse, overrides) if key in cls.NO_EFFECT))


def tracker_names(key: str, text: str) -> list[str]:
    """`['console','wandb']`, [console,wandb] or console,wandb as the sinks in it, each once; the
    console is where a lab speaks anyway."""
    names = [name for name in dict.fromkeys(re.findall(r"\w+", text)) if name != "console"]
    for name in names:
        if name not in KNOWN:
            raise UnknownName(key, name, KNOWN, hint=f"There is: {', '.join(KNOWN)}.")
    return names


@dataclass(frozen=True, slots=True)
class SettingsCheck:
    """Checks of settings by their names; an error has the key as it is typed, `under` before it.

    `why` says what is wrong with the value, where that is more than its size.
    """

    settings: object
    under: str = ""

    def at_least(self, least: float, *names: str, why: str = "") -> None:
        """A finite number that is no smaller; null is fine where a setting allows it."""
        for name in names:
            value = getattr(self.settings, name)
            if value is not None and not least <= value < math.inf:
                self._refuse(name, why, f"use {least} or more")

    def above_zero(self, *names: str, why: str = "", finite: bool = True) -> None:
        """A number above zero."""
        for name in names:
            value = getattr(self.settings, name)
            if not value > 0 or (finite and math.isinf(value)):
                self._refuse(name, why, "use a number above 0")

    def from_zero(self, *names: str) -> None:
        """A finite number, zero or more."""
        for name in names:
            if not 0 <= getattr(self.settings, name) < math.inf:
                self._refuse(name, "", "use a number from 0 up")

    def between(self, low: float, high: float, *names: str, why: str = "") -> None:
        """low ≤ value ≤ high."""
        for name in names:
            if not low <= getattr(self.settings, name) <= high:
                self._refuse(name, why, f"use {low} to {high}")

    def one_of(self, known: Iterable[str], name: str) -> None:
        """A word of a closed list."""
        words, value = list(known), getattr(self.settings, name)
        if value not in words:
            hint = f"There is: {', '.join(words)}."
            raise UnknownName(f"{self.under}{name}", value, words, hint=hint)

    def shared_by_heads(self, name: str) -> None:
        """A width that `num_heads` attention heads can share."""
        heads: int = getattr(self.settings, "num_heads")  # noqa: B009 (of any config that has it)
        if getattr(self.settings, name) % heads:
            self._refuse(name, f"cannot be shared by num_heads={heads}", "use a multiple")

    def _refuse(self, name: str, why: str, remedy: str) -> NoReturn:
        found = f"{self.under}{name}={getattr(self.settings, name)}"
        raise UsageError(f"{found} {why}: {remedy}" if why else f"{found}: {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """How far a training is."""

    done: int
    total: int
    unit: str = "steps"
    """What is counted."""
    mean_return: float
    """Of the latest episodes; NaN until one has ended."""
    notes: tuple[str, ...] = ()
    """Lines the training has to say since it was last heard, as they are to be read."""


ConfigT = TypeVar("ConfigT", bound=LabConfig)


def configure(
    lab_config_class: type[ConfigT], overrides: Sequence[str], *, config_name: str | None = None
) -> ConfigT:
    """The lab's defaults with `key=value` overrides on top; keys are dotted, the last of two wins.

    What `config_name` and preset= stand for is applied before, in that order. Hydra's `+key=value`
    is `key=value`.
    """
    try:
        from omegaconf import OmegaConf
    except ModuleNotFoundError as error:
        raise MissingExtra("omegaconf", "labs", "key=value overrides") from error
    defaults = lab_config_class()
    known = keys_of(defaults)
    config = OmegaConf.structured(defaults)
    named = (
        []
        if config_name is None
        else [_parse(each) for each in _named(lab_config_class, config_name)]
    )
    given = [_parse(override) for override in overrides]
    preset = lab_config_class.PRESETS.get(
        _unquoted(dict([*named, *given]).get("preset", "none")), ()
    )
    for key, text in [*named, *map(_parse, preset), *given]:
        if key not in known:
            others = "" if close_names(key, known) else f"(there are {some(sorted(known), 40)})"
            raise UnknownName("override", key, known, hint=others)
        _set(config, key, text, expected=known[key])
    chosen = OmegaConf.to_object(config)
    assert isinstance(chosen, lab_config_class)
    return chosen


def keys_of(config: object) -> dict[str, str]:
    """The dotted keys of a config, each with the type it takes, as written in the dataclass."""
    return dict(_leaves(config))


def overrides_of(saved: Mapping[str, Any], prefix: str = "") -> list[str]:
    """A config that was kept as nested JSON, as the overrides that make it again."""
    overrides: list[str] = []
    for name, value in saved.items():
        if isinstance(value, Mapping):
            overrides += overrides_of(value, f"{prefix}{name}.")
        else:
            overrides.append(
                f"{prefix}{name}={value if isinstance(value, str) else json.dumps(value)}"
            )
    return overrides


def torch_device(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    import torch

    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # a torch built without CUDA asserts
        raise UsageError(
            f"device={name} cannot be used here ({str(error).splitlines()[0]}): try device=cpu"
        ) from error


def _parse(override: str) -> tuple[str, str]:
    key, equals, text = override.partition("=")
    if not equals:
        raise UsageError(f"{override!r} is not an override: write key=value, for example seed=2")
    return key.removeprefix("+").removeprefix("+"), text


def _named(lab_config_class: type[LabConfig], config_name: str) -> tuple[str, ...]:
    names = lab_config_class.CONFIG_NAMES
    if not names:
        raise UsageError(
            f"--config-name {config_name}: this lab has no named configurations, leave it out"
        )
    if config_name not in names:
        raise UnknownName("config name", config_name, names, hint=f"There is: {', '.join(names)}.")
    return names[config_name]


def _leaves(config: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    for each in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, each.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{each.name}.")
        else:
            yield f"{prefix}{each.name}", str(each.type)


def _set(config: Any, key: str, text: str, *, expected: str) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import (
        ConfigTypeError,
        GrammarParseError,
        InterpolationResolutionError,
        ValidationError,
    )
    from yaml import YAMLError  # type: ignore[import-untyped]

    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    OmegaConf.set_readonly(node, False)  # a frozen dataclass makes each of its nodes read-only
    try:
        # YAML would read run=007 as a number and run=a:b as a mapping: text stays as it was typed
        is_text = expected.startswith("str") and text != "null"
        if key == "run" and keeps_nothing(text):
            is_text, text = False, "null"
        node[leaf] = _unquoted(text) if is_text else OmegaConf.from_dotlist([f"value={text}"]).value
        _ = node[leaf]  # resolves ${...} now, while we know whose it is
    except (
        ConfigTypeError,
        GrammarParseError,
        InterpolationResolutionError,
        ValidationError,
        YAMLError,
    ) as error:
        wanted = expected.replace(" | None", " or null")
        raise UsageError(f"override {key}={text}: found {text!r}, expected {wanted}") from error


def _unquoted(text: str) -> str:
    """Without the quotes that Hydra wants around text with commas: "'0,1'" in a shell arrives as
    '0,1'."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
