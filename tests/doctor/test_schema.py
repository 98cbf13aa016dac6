"""The published schema of `--json`: every output is valid, and nothing is in one that it does not
name."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.report import plain, plain_of_several
from gradiometer.doctor.schema import schema
from gradiometer.doctor.several import diagnose_runs
from gradiometer.store.importers import open_log
from gradiometer.store.logs import Log
from gradiometer.store.strictjson import to_json

FIXTURES = Path(__file__).parents[1] / "fixtures"
LOGS = sorted(each for each in FIXTURES.iterdir() if each.is_dir())


def closed(part: Any) -> Any:
    """The same schema, in which no object may hold what is not named."""
    if isinstance(part, list):
        return [closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    made = {key: closed(each) for key, each in part.items()}
    if "properties" in made:
        made["unevaluatedProperties"] = False
    return made


def strict() -> dict[str, Any]:
    made: dict[str, Any] = closed(schema())
    made["$defs"]["diagnosis"].pop("unevaluatedProperties")  # a report holds one, and more
    made["properties"]["runs"]["items"]["unevaluatedProperties"] = False
    return made


def spoken(content: Any) -> Any:
    return json.loads(to_json(content))


@pytest.mark.filterwarnings("ignore::gradiometer.errors.GradiometerWarning")
@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_what_is_said_of_every_fixture_is_valid_and_wholly_described(log: Path) -> None:
    with open_log(log) as run:
        said = spoken(plain(diagnose(run)))
    jsonschema.validate(said, strict(), cls=jsonschema.Draft202012Validator)


def test_several_runs_nan_and_a_log_without_an_outcome_are_valid() -> None:
    nothing = Log("x", name="x", run_id="x", rows=[(0, {"mystery": 1.0})], facts={})
    rows = [(step, {"reward": math.inf if step > 40 else float(step)}) for step in range(60)]
    wild = Log("y", name="y", run_id="y", rows=rows, facts={})
    rising = [(step, {"reward": float(step)}) for step in range(60)]
    fine = Log("z", name="z", run_id="z", rows=rising, facts={})
    said = spoken(plain_of_several(diagnose_runs([nothing, wild, fine])))
    assert None in [each["outcome"] for each in said["runs"]]
    assert said["contrast"] is not None
    jsonschema.validate(said, strict(), cls=jsonschema.Draft202012Validator)


def test_what_is_not_described_is_refused_by_the_test_itself() -> None:
    nothing = Log("x", name="x", run_id="x", rows=[(0, {"mystery": 1.0})], facts={})
    said = spoken(plain(diagnose(nothing)))
    for key, value in (("more", 1), ("state", "ill"), ("findings", [{"id": "x"}])):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**said, key: value}, strict())
    missing = {key: value for key, value in said.items() if key != "verdict"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(missing, schema())


def properties(part: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(part, dict):
        for name, each in part.get("properties", {}).items():
            yield f"{place}.{name}", each
        for name, each in part.items():
            yield from properties(each, f"{place}.{name}")


def test_it_is_a_schema_and_every_key_says_what_it_means() -> None:
    made = copy.deepcopy(schema())
    jsonschema.Draft202012Validator.check_schema(made)
    found = dict(properties(made))
    assert len(found) > 40
    assert [name for name, each in found.items() if not each.get("description")] == []
