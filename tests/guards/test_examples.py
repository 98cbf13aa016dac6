"""Every example runs, says something, and warns of nothing; so do the cells of the notebook, in
their order."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from forkserver import python

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
NOTEBOOK = FOLDER / "gradiometer.ipynb"


def test_examples_are_numbered_and_the_first_is_short() -> None:
    assert [int(example.name[:2]) for example in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))
    assert len(EXAMPLES[0].read_text(encoding="utf-8").splitlines()) < 40


def test_an_example_opens_with_how_to_run_it_and_what_one_will_see() -> None:
    for example in EXAMPLES:
        said = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
        said = " ".join(said.split())  # a line may end anywhere
        assert f"`python examples/{example.name}` prints " in said
        assert 'Needs `pip install "gradiometer[' in said, example.name


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    done = python("-W", "error", example, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if "run=" in example.read_text(encoding="utf-8"):
        assert list((tmp_path / "runs").iterdir())


def cells() -> list[str]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def test_the_notebook_is_kept_without_outputs() -> None:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in found)


def test_the_notebook_finds_the_dead_term_and_nothing_wrong_after_the_repair(
    tmp_path: Path,
) -> None:
    script = "\n".join(
        ['import matplotlib; matplotlib.use("Agg")', *cells(), 'figure.savefig("figure.png")']
    )
    # plt.show() only warns where there is no screen
    done = python("-W", "error", "-W", "ignore:FigureCanvasAgg", "-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The loss term 'entropy' has no gradient" in done.stdout
    assert "critical, proved: dead-term, since step 0" in done.stdout
    assert "Nothing wrong was found" in done.stdout
    assert (tmp_path / "figure.png").stat().st_size > 10_000
