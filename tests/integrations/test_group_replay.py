"""Group-relative training, unchanged: the recipe of its advantages is told by what it did. Each
mistake is found in a program of ours, and its healthy twins, written in other ways, are silent."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradiometer as gm
from gradiometer.cli.main import run
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.replayed import replayed_groups
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Table
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

pytestmark = pytest.mark.slow

PROGRAM = (Path(__file__).parents[2] / "labs" / "programs" / "grpo_tokens.py").read_text("utf-8")
SPREAD = "grouped.std(1, keepdim=True)"
MADE = "(centred / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)"
MASKED = "(per_token_loss * mask).sum() / mask.sum()"
HEALTHY = {
    "normalised": (MADE, MADE),
    "centred": (MADE, "centred.view(-1)"),
    "leave one out": (MADE, "(grouped - (grouped.sum(1, keepdim=True) - grouped) / 7).view(-1)"),
    "spread of the batch": (SPREAD, "grouped.std()"),
    "mean over each answer": (MASKED, "((per_token_loss * mask).sum(1) / mask.sum(1)).mean()"),
}
BROKEN = {
    "not centred": ("centred = grouped - grouped.mean(1, keepdim=True)", "centred = grouped"),
    "rewards": (MADE, "rewards"),
    "wrong spread": (SPREAD, "grouped.std(0, keepdim=True)"),
    "variance": (SPREAD, "grouped.var(1, keepdim=True)"),
    "groups cut wrongly": (
        "prompts.repeat_interleave(args.num_generations)",
        "prompts.repeat(args.num_generations)",
    ),
    "laid out": (MADE, MADE.removesuffix(".view(-1)") + ".T.reshape(-1)"),
    "moved": (MADE, f"{MADE} + 1.0"),
    "sign": ("per_token_loss = -gain", "per_token_loss = gain"),
    "mask": (MASKED, "per_token_loss.mean()"),
}
WORDS = {
    "not centred": "not centred",
    "rewards": "without a baseline",
    "wrong spread": "the spread of other groups",
    "variance": "over the variance",
    "groups cut wrongly": "groups that mix prompts",
    "laid out": "of other answers: laid out answer by answer",
    "moved": "with a number added to all of them",
    "sign": "of the opposite sign",
    "mask": "outside the mask",
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    yield
    sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path


def recorded(tmp_path: Path, old: str, new: str) -> Path:
    assert PROGRAM.count(old) == 1
    (tmp_path / "train.py").write_text(PROGRAM.replace(old, new), encoding="utf-8")
    folder = tmp_path / "kept"
    train = ("run", "--no-doctor", "--run", str(folder), str(tmp_path / "train.py"))
    assert run([*train, "--steps", "8"]) == 0
    return folder


@pytest.mark.parametrize("change", HEALTHY)
def test_a_right_recipe_is_checked_and_nothing_is_said(tmp_path: Path, change: str) -> None:
    with gm.load(recorded(tmp_path, *HEALTHY[change])) as kept:
        findings = diagnose(kept).findings
        fits = kept.tables("group-replay")
        found = replayed_groups(RunData(kept))
    assert found is not None
    assert found.checked
    assert found.right.lengths == ("answers" if change == "mean over each answer" else "tokens")
    assert "recipe-mismatch" not in [each.id for each in findings]
    assert "proved" not in [each.basis for each in findings]
    assert len(fits) == 8


@pytest.mark.parametrize("change", BROKEN)
def test_a_wrong_recipe_is_proved(
    tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(tmp_path, *BROKEN[change])
    with gm.load(folder) as kept:
        found = [each for each in diagnose(kept).findings if each.id == "recipe-mismatch"]
    assert len(found) == 1
    assert found[0].basis == "proved"
    assert WORDS[change] in found[0].title
    capsys.readouterr()
    assert run(["replay", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert WORDS[change] in shown["verdict"]
    assert run(["replay", str(folder)]) == 0
    assert shown["verdict"] in " ".join(capsys.readouterr().out.split())


def test_lengths_are_held_against_the_settings(tmp_path: Path) -> None:
    with load(recorded(tmp_path, MADE, MADE)) as kept:
        tables = kept.tables("group-replay")
    for loss_type, ids in (("grpo", ["recipe-mismatch"]), ("dapo", [])):
        folder = tmp_path / loss_type
        with Writer(folder, facts={"config": {"loss_type": loss_type}}) as writer:
            for table in tables:
                writer.put(Table(step=table.step, name=table.name, content=table.content))
        with load(folder) as kept:
            found = [x for x in diagnose(kept).findings if x.id == "recipe-mismatch"]
        assert [each.id for each in found] == ids
