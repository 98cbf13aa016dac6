"""Every finding id has a test; every fault has an id."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gradiometer.doctor import rule
from gradiometer.doctor.declared import Sign, seen
from gradiometer.doctor.faultmap import FAULT_IDS, failure
from gradiometer.doctor.rule import (
    Rule,
    Skipped,
    Verdict,
    finding,
    rules,
    sections,
    unlogged,
    words,
)
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.trainers import SETTINGS
from gradiometer.records import Finding
from gradiometer.store.logs import Log
from gradiometer_labs.faults import all_faults

IDS = {each.id for each in rules()}

HERE = Path(__file__).parent
ELSEWHERE = {"test_ids.py", "test_arbitration.py", "test_healthy.py", "test_source_case.py"}
"""Tests of everything together do not count as a rule's own."""


def test_an_id_is_words_with_hyphens_that_people_can_filter_by() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)+|truncation", id) for id in IDS)


def test_every_fault_of_the_catalogue_has_an_id_that_names_it() -> None:
    assert set(FAULT_IDS) == {f"F{number}" for number in range(1, 49)}
    for fault, ids in FAULT_IDS.items():
        assert ids, fault
        assert set(ids) <= IDS, fault


def test_a_fault_of_the_labs_expects_what_the_catalogue_names() -> None:
    for fault in all_faults():
        assert set(fault.expected) <= IDS, fault
        if fault.catalogue in FAULT_IDS:
            assert set(fault.expected) & set(FAULT_IDS[fault.catalogue]), fault


def test_the_words_of_a_rule_are_labelled_lines_and_their_braces_are_filled() -> None:
    said = words("""
        cause: Why,
          over two lines.
        fix: Lower {key}
        fix: or wait
        confirm: Look.
        see: F17
        see: arXiv 1
        """)
    assert (said.cause, said.fix) == ("Why, over two lines.", ("Lower {key}", "or wait"))
    assert said.references == (failure("F17"), "arXiv 1")
    found = Rule(
        id="made-up", family="", needs=(), words=said, judge=lambda _: finding("!", key="lr")
    )
    log = Log(Path("log"), name="log", run_id="log", rows=[], facts={})
    (made,) = found(RunData(log)) or ()
    assert isinstance(made, Finding)
    assert (made.id, made.fix, made.confirm) == ("made-up", ("Lower lr", "or wait"), "Look.")


def test_every_brace_in_the_words_of_a_rule_has_a_value_somewhere() -> None:
    folder = Path(rule.__file__).with_name("rules")
    calls = [
        node
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    given = {keyword.arg for call in calls for keyword in call.keywords} | {"key"}
    kinds = ("said", "values", "settings")
    for call in calls:  # `said={"rate": ...}` of a sign, `values={...}` of its finding
        held = [keyword.value for keyword in call.keywords if keyword.arg in kinds]
        names = [key for each in held if isinstance(each, ast.Dict) for key in each.keys]
        given |= {key.value for key in names if isinstance(key, ast.Constant)}
    for each in rules():
        for said in (each.words, *each.sections.values()):
            text = " ".join((said.cause, *said.fix, said.confirm))
            assert set(re.findall(r"\{(\w+)\}", text)) <= given, each.id


def test_a_finding_that_names_a_section_is_said_in_its_words() -> None:
    text = "\ncause: Why.\nfix: Wait\n[other]\ncause: Because of {key}.\n"
    first, other = sections(text).items()
    assert first == ("", words("cause: Why.\nfix: Wait"))
    found = Rule(
        id="made-up",
        family="",
        needs=(),
        words=first[1],
        sections=dict([other]),
        judge=lambda _: finding("!", words="other", key="lr"),
    )
    log = Log(Path("log"), name="log", run_id="log", rows=[], facts={})
    (made,) = found(RunData(log)) or ()
    assert isinstance(made, Finding)
    assert (made.cause, made.fix) == ("Because of lr.", ())


MAKERS = {"finding", "proof", "replace", "Look", "Way"}
"""Whose `words` may name a section."""


def test_every_section_of_a_rule_is_named_by_a_finding_and_every_name_is_a_section() -> None:
    for file in Path(rule.__file__).with_name("rules").glob("*.py"):
        named, known = set(), set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                made = isinstance(node.func, ast.Name) and node.func.id in MAKERS
                given = [each.value for each in node.keywords if each.arg == "words" and made]
                parts = [part for each in given for part in ast.walk(each)]
                named |= {str(x.value) for x in parts if isinstance(x, ast.Constant) and x.value}
                texts = [str(x.value) for x in node.args if isinstance(x, ast.Constant)]
                known |= {name for x in texts if "cause: " in x for name in sections(x) if name}
        if file.stem != "wiring_replay":  # it keeps tables of words by recipe
            assert known == named, file.name


def test_every_setting_that_a_fix_names_is_in_the_table_of_trainers() -> None:
    for file in Path(rule.__file__).with_name("rules").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if name in ("key_of", "key_for") and isinstance(node.args[1], ast.Constant):
                assert node.args[1].value in SETTINGS, file
            given = [k.value for k in getattr(node, "keywords", ()) if k.arg == "settings"]
            named = [x for each in given if isinstance(each, ast.Dict) for x in each.values]
            written = [ast.literal_eval(x) for x in named if isinstance(x, ast.Tuple)]
            assert all(each[0] in SETTINGS for each in written), file


def named(tree: ast.Module) -> set[str]:
    """Every id that a test function names: in its body, in what it is parametrized with, or by a
    constant of its module."""
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=True) if several else [(target, value)]  # type: ignore[attr-defined]
            constants |= {name.id: held for name, held in pairs if isinstance(name, ast.Name)}
    found: set[str] = set()
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            used = [
                constants[part.id]
                for part in ast.walk(test)
                if isinstance(part, ast.Name) and part.id in constants
            ]
            parts = [part for root in (test, *used) for part in ast.walk(root)]
            found |= {
                part.value for part in parts if isinstance(part, ast.Constant) and part.value in IDS
            }
    return found


def test_every_id_has_a_test_of_its_own_that_names_it() -> None:
    found: set[str] = set()
    for file in HERE.glob("test_*.py"):
        if file.name not in ELSEWHERE:
            found |= named(ast.parse(file.read_text(encoding="utf-8")))
    assert IDS - found == set(), "ids that no test fires"


def test_a_rule_that_sees_a_sign_adds_its_title_its_setting_and_what_the_reward_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rule, "_RULES", {})
    named = {"key": ("step", "the learning rate")}

    @seen("made-up", "cause: Why.\nfix: Lower {key}", title="It reads {level}", settings=named)
    def sees(run: RunData) -> Sign | Verdict:
        """A sign where there is one."""
        entropy = run.get("entropy")
        if entropy is None:
            return unlogged("entropy")
        return Sign(series=entropy, strength="strong", since=0, reading="1", said={"level": "1"})

    made = rule._RULES["made-up"]
    assert made.judge.__doc__ == "A sign where there is one."
    rows = [(n, {"entropy": 1.0, "reward": 2.0}) for n in range(40)]
    log = Log(Path("log"), name="log", run_id="log", rows=rows, facts={})
    (found,) = made(RunData(log)) or ()
    assert isinstance(found, Finding)
    assert found.title.startswith("It reads 1, and the reward ")
    assert found.fix == ("Lower the learning rate",)
    assert found.severity != "info"
    bare = Log(Path("log"), name="log", run_id="log", rows=[], facts={})
    assert isinstance(made(RunData(bare)), Skipped)
