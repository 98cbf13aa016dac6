"""Every example runs, says something, and warns of nothing; so do the cells of the notebook, in
their order."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
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


# What is compared: words, and not the numbers and curves of another processor.
EXECUTE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import notebook
kept = json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))
print(json.dumps(notebook.executed(kept)))
"""


def words(text: str) -> str:
    text = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"-?\d[\d.,]*(e[-+]\d+)?", "#", text))


def test_the_outputs_kept_in_the_notebook_and_on_its_page_are_what_the_cells_say(
    tmp_path: Path,
) -> None:
    docs = FOLDER.parent / "docs"
    spec = importlib.util.spec_from_file_location("notebook", docs / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    notebook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook)
    kept = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    # plt.show() only warns where there is no screen
    silent = ("-W", "error", "-W", "ignore:FigureCanvasAgg")
    done = python(*silent, "-c", EXECUTE, str(docs), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = notebook.texts_of(json.loads(done.stdout))
    assert [*map(words, told)] == [*map(words, notebook.texts_of(kept))], (
        "run `python docs/notebook.py`"
    )
    assert any("critical, proved: dead-term, since step 0" in text for text in told)
    assert any("Nothing wrong was found" in text for text in told)
    page = (docs / "notebook.md").read_text(encoding="utf-8")
    for text in notebook.texts_of(kept):
        assert text.rstrip() in page
    for cell in kept["cells"]:
        assert "".join(cell["source"]).strip() in page


def test_the_notebook_holds_no_path_of_a_machine_and_no_time() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert "image/png" in text
    assert not re.search(r"/(work|root|home|tmp)/|\b20\d\d-\d\d-\d\d\b", text)
