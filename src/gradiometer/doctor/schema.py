"""What `gradiometer doctor --json` prints, as a JSON schema (draft 2020-12).

Types come from the records themselves, words from the table below; a test holds every output
against it. Keys may be added; while `schema` stays the same number none is removed or changes its
meaning.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gradiometer.doctor.diagnosis import OutcomeRecord
from gradiometer.doctor.rule import Skipped
from gradiometer.doctor.rundata import Named
from gradiometer.doctor.several import Apart, Contrast
from gradiometer.doctor.state import State
from gradiometer.records import Evidence, Finding

__all__ = ["SPOKEN", "VERSION", "schema"]

VERSION = 1
RECORDS: dict[type, str] = {
    OutcomeRecord: "outcome",
    Finding: "finding",
    Evidence: "evidence",
    Skipped: "skipped",
    Named: "name",
    Contrast: "contrast",
    Apart: "apart",
}
"""What each record is called in the schema."""
SPOKEN = ["NaN", "Infinity", "-Infinity"]
"""Numbers that JSON does not know are these words."""

WORDS: Mapping[str, Mapping[str, str]] = {
    "outcome": {
        "": "The one series that says how well the policy does, and what became of it.",
        "series": "Its name in the log.",
        "course": "What it did: at its maximum, above its start, neither, below, or not to tell.",
        "start": "Its level at the start.",
        "best": "The best level it had, over a tenth of its measurements.",
        "best_step": "Where that was.",
        "end": "Its level at the end.",
        "lost": "Of what was gained up to the best, the share that is gone.",
    },
    "finding": {
        "": "What is wrong, why we think so, what to change, and how to make sure.",
        "id": "Stable: the name of the rule; docs/reference/findings.md lists them.",
        "title": "What was found, in a sentence.",
        "severity": "info is worth knowing, warn worth acting on, critical worth stopping for.",
        "basis": "proved is structural, statistical a test, heuristic the rest.",
        "since_step": "The first step at which it held; null where that has no meaning.",
        "block": "The part of the model it concerns; null for all of it.",
        "evidence": "What it rests on.",
        "cause": "Why this happens.",
        "fix": "What to change, the first thing first.",
        "confirm": "How to make sure.",
        "suppressed": "Ids of the findings that follow from this one.",
        "references": "Where to read more.",
        "clinic": "How often it was right when it was shown first; empty where that is unknown.",
    },
    "evidence": {
        "": "One fact: a series, where to look, and what it reads.",
        "series": "Its name in the log.",
        "reading": "What it reads, in words.",
        "first_step": "From which step on that was read.",
        "last_step": "Up to which step.",
    },
    "skipped": {
        "": "A check that could not run, for missing data.",
        "rule": "Its id.",
        "why": "What is missing, and how to log it.",
        "metric": "The name of the catalogue that is missing, or too short; may be empty.",
    },
    "name": {
        "": "A column whose meaning was guessed, told or chosen among several.",
        "column": "Its name in the log.",
        "meaning": "The name of the catalogue it was read as.",
        "how": "How that was decided.",
        "instead_of": "Columns that could have been meant too.",
    },
    "contrast": {
        "": "Runs that differ from most, and in what.",
        "runs": "Which, by what sets their paths apart.",
        "why": "What became of them, and of the others.",
        "settings": "Settings in which they have no value in common with the others.",
        "only_own": "Whether settings are known, and only the seed, the name or the place differ.",
        "series": "Series that end apart from the others', the widest gap first.",
    },
    "apart": {
        "": "A setting or a series in which some runs have nothing in common with the others.",
        "name": "Of the setting, or of the series in the catalogue.",
        "here": "Its values in these runs; of a series the mean of its last tenth.",
        "others": "Those of the others.",
    },
    "diagnosis": {
        "": "What the doctor says of one run or log.",
        "schema": "The version of this schema.",
        "run": "Its path.",
        "state": "What became of the run, in a word.",
        "verdict": "The same in a sentence or two, which begin with the state.",
        "outcome": "Null where no series is known to say how well the policy does.",
        "findings": "The first is the one to act on.",
        "folded": "Consequences of those.",
        "skipped": "Checks that could not run.",
        "names": "What was read as what, where names leave a doubt.",
        "unknown_keys": "Series that are not in the catalogue, and were not read.",
        "looked": "Ids of the checks that ran and found nothing.",
    },
    "report": {
        "": "One object: the diagnosis; of several runs that of the longest, and all of them.",
        "runs": "Of several runs: the diagnosis of each, the worst first.",
        "states": "Of several runs: how many are in each state.",
        "shared": "Of several runs: how many have each finding that is worth acting on, by its id.",
        "contrast": "Of several runs: those that differ from most; null where none does.",
        "confirmations": "With --confirm: what the experiments showed.",
    },
}
"""The meaning of each record (under the empty key) and of each of its keys."""


@cache
def schema() -> dict[str, Any]:
    """The whole schema; what is printed is a `report`."""
    records = {name: _object(name, _properties(record)) for record, name in RECORDS.items()}
    records["finding"] = _object("finding", {**_properties(Finding), "clinic": _of(str)})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:gradiometer:doctor:{VERSION}",
        "title": "gradiometer doctor --json",
        "description": WORDS["report"][""],
        "allOf": [{"$ref": "#/$defs/diagnosis"}],
        "properties": _described("report", _of_reports()),
        "$defs": {**records, "diagnosis": _object("diagnosis", _of_diagnoses())},
    }


def _of_diagnoses() -> dict[str, Any]:
    return {
        "schema": {"const": VERSION},
        "run": _of(str),
        "state": _of(State),
        "verdict": _of(str),
        "outcome": _of(OutcomeRecord | None),
        "findings": _of(tuple[Finding, ...]),
        "folded": _of(tuple[Finding, ...]),
        "skipped": _of(tuple[Skipped, ...]),
        "names": _of(tuple[Named, ...]),
        "unknown_keys": _of(tuple[str, ...]),
        "looked": _of(tuple[str, ...]),
    }


def _of_reports() -> dict[str, Any]:
    counts = {"type": "object", "additionalProperties": {"type": "integer"}}
    return {
        "runs": {"type": "array", "items": {"$ref": "#/$defs/diagnosis"}},
        "states": counts,
        "shared": counts,
        "contrast": {"anyOf": [{"$ref": "#/$defs/contrast"}, {"type": "null"}]},
        "confirmations": {"type": "array", "items": {"type": "object"}},
    }


def _properties(record: type) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {each.name: _of(hints[each.name]) for each in dataclasses.fields(record)}


def _object(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": WORDS[name][""],
        "required": list(properties),
        "properties": _described(name, properties),
    }


def _described(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {"description": WORDS[name][key], **kind} for key, kind in properties.items()}


def _of(hint: Any) -> dict[str, Any]:
    """The schema of a type, as `strictjson` writes its values."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in RECORDS:
        return {"$ref": f"#/$defs/{RECORDS[hint]}"}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(part) for part in parts]}
    if origin is tuple:
        return {"type": "array", "items": _of(parts[0])}
    if hint is float:
        return {"anyOf": [{"type": "number"}, {"enum": SPOKEN}]}
    return {"type": {str: "string", bool: "boolean", int: "integer", types.NoneType: "null"}[hint]}
