"""The docs say what the code does: generated pages are equal, links lead somewhere, the README runs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gradiometer
from gradiometer import errors
from gradiometer.metrics import CATALOGUE, resolve

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = generator()


@pytest.mark.parametrize("name", GENERATE.PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == GENERATE.PAGES[name](), "run `make docs`"


def test_every_metric_command_error_and_name_is_documented() -> None:
    reference = {name: (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") for name in GENERATE.PAGES}
    for name in CATALOGUE:
        assert f"`{name}`" in reference["metrics.md"]
    for command in GENERATE.command_names():
        assert f"## `gradiometer {command}`" in reference["commands.md"]
    for name in errors.__all__:
        assert name in reference["errors.md"]
    for name in gradiometer.__all__:
        assert name == "__version__" or f"`gm.{name}`" in reference["api.md"]


def test_every_metric_explains_itself() -> None:
    for metric in CATALOGUE.values():
        assert metric.unit
        assert metric.meaning.endswith(".")
        assert not (metric.healthy and metric.origin != "logged") or metric.remedy or metric.source, metric.name


def test_no_alias_means_two_things() -> None:
    names = [alias.name for metric in CATALOGUE.values() for alias in metric.aliases]
    assert len(names) == len(set(names))
    assert not set(names) & set(CATALOGUE)
    metric, alias = resolve("train/entropy_loss") or (None, None)
    assert metric is not None
    assert alias is not None
    assert (metric.name, alias.sign) == ("entropy", -1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", prose):
        assert target.startswith("https://") or (page.parent / target).exists(), target


README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# What a reader has around the README's lines: a loop of their own, SB3, a trainer of TRL with its arguments.
PLAIN = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(model, optimizer, log):
    for _ in range(10):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(reward=-loss)
"""
SB3 = "from stable_baselines3 import PPO"
TRL = """
import transformers
def GRPOTrainer(arguments, callbacks):
    assert all(isinstance(callback, transformers.TrainerCallback) for callback in callbacks)
"""


def test_the_readme_is_one_page() -> None:
    assert README.count("\n") < 100
    assert len(SNIPPETS) == 3


@pytest.mark.parametrize(
    ("before", "place", "series"),
    [(PLAIN, 0, ("plain", "reward")), (SB3, 1, ("sb3", "grad/actor/norm/raw")), (TRL, 2, None)],
    ids=["plain torch", "sb3", "trl"],
)
def test_the_python_of_the_readme_runs(before: str, place: int, series: tuple[str, str] | None, tmp_path: Path) -> None:
    code = f"{before}\n{SNIPPETS[place]}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "GradiometerWarning" not in done.stderr
    if series:
        steps, _values = gradiometer.load(tmp_path / "runs" / series[0]).series(series[1])
        assert len(steps) > 1


def test_the_diagnosis_in_the_readme_is_what_the_doctor_says() -> None:
    """Each line of it is in the words of the rule, so that the README cannot grow old."""
    (told,) = re.findall(r"```text\n(CRITICAL dead-term.*?)```", README, re.DOTALL)
    source = "".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "src/gradiometer/doctor/rules").glob("wiring*.py")
    )
    for words in (
        "Its coefficient has no effect",
        "Compute the entropy outside of torch.no_grad()",
        "requires_grad before backward()",
    ):
        assert words in told
        assert words in source


def test_the_figures_of_our_code_are_true_to_a_twentieth() -> None:
    """Not to the line, or every commit would have to touch them; `make docs` writes them anew."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| \*\*gradiometer\*\* .*$", text, re.MULTILINE)
    written, measured = (
        [float(number) for number in re.findall(r"\d+", each)]
        for each in (row, GENERATE.row_of_ours(GENERATE.shape_of_the_code()))
    )
    assert written == pytest.approx(measured, rel=0.05, abs=1)


def test_nothing_names_a_path_of_this_machine() -> None:
    for page in PAGES:
        assert not re.search(r"/work/|/root/|/home/", page.read_text(encoding="utf-8")), page
