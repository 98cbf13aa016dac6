"""Case studies: a YAML file with the settings of a lab, and variations of them by name.

lab: sparsify
settings: {entropy_coef: 0.01, temperature: {initial: 0.9}}      # of every variation
variations:
  A: {problem: {grid_size: 128}}                                 # on top of them
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from gradiometer.errors import MissingExtra, UnknownName, UsageError
from gradiometer_labs import Lab
from gradiometer_labs.config import overrides_of

__all__ = ["overrides_from"]

SOURCES_FOLDER = "case_studies"
KEYS = ("lab", "settings", "variations")


def overrides_from(config: str | None, variation: str | None, lab: Lab) -> list[str]:
    """What a case study says, as overrides; `config` is a file, or the name of one that comes with
    the lab."""
    if config is None:
        if variation is not None:
            raise UsageError(
                f"--variation {variation} is one of a case study: name its file with --config"
            )
        return []
    study = _checked(config, _parsed(config, _text(config, lab)), lab)
    return overrides_of(study.get("settings", {})) + overrides_of(_chosen(config, study, variation))


def _text(config: str, lab: Lab) -> str:
    """Of the file at that path, else of the lab's own of that name; what its source keeps under
    case_studies/ is the lab's own too."""
    path, own = Path(config), files(lab.module) / Path(config).name
    ours = path.name == config or (SOURCES_FOLDER in path.parts and own.is_file())
    place = own if ours and not path.is_file() else path
    try:
        return place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = sorted(
            each.name
            for each in files(lab.module).iterdir()
            if each.name.endswith((".yaml", ".yml"))
        )
        has = (
            f"the {lab.name} lab comes with {', '.join(names)}"
            if names
            else f"the {lab.name} lab comes with none"
        )
        raise UsageError(f"--config {config}: no such case study can be read; {has}") from error


def _parsed(config: str, text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise MissingExtra("yaml", "labs", "--config") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = "" if mark is None else f" in line {mark.line + 1}"
        raise UsageError(
            f"--config {config} is not YAML{at}: {getattr(error, 'problem', error)}"
        ) from error


def _checked(config: str, study: Any, lab: Lab) -> Mapping[str, Any]:
    """The study, if it is one, and of this lab."""
    if not isinstance(study, Mapping):
        raise UsageError(
            f"--config {config} is no case study: it needs {', '.join(KEYS)} at its top"
        )
    for key in study:
        if key not in KEYS:
            raise UnknownName(
                f"key in {config}:", str(key), KEYS, hint=f"There is: {', '.join(KEYS)}."
            )
    if study.get("lab", lab.name) != lab.name:
        raise UsageError(
            f"--config {config} is a study of the {study['lab']} lab, not of {lab.name}"
        )
    for key in KEYS[1:]:
        if not isinstance(study.get(key, {}), Mapping):
            raise UsageError(f"--config {config}: {key} must map names to values")
    return study


def _chosen(config: str, study: Mapping[str, Any], variation: str | None) -> Mapping[str, Any]:
    variations = {str(name): settings for name, settings in study.get("variations", {}).items()}
    if variation is None:
        if variations:
            raise UsageError(
                f"--config {config} has the variations {', '.join(variations)}: choose with"
                " --variation"
            )
        return {}
    if variation not in variations:
        hint = f"{config} has: {', '.join(variations)}." if variations else f"{config} has none."
        raise UnknownName("variation", variation, variations, hint=hint)
    chosen = variations[variation]
    if not isinstance(chosen, Mapping):
        raise UsageError(f"--config {config}: variation {variation} must map names to values")
    return chosen
