"""Run the cells of examples/gradiometer.ipynb, keep their outputs, and write docs/notebook.md.

`python docs/notebook.py` needs no Jupyter: a cell is run by Python itself, and what it prints,
shows with matplotlib or ends with is its output. The runs go to a temporary folder, so that no
output holds a path of this machine. tests/guards/test_examples.py compares texts with a new run.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
NOTEBOOK = DOCS.parent / "examples" / "gradiometer.ipynb"
PAGE, PICTURES = DOCS / "notebook.md", DOCS / "pictures"
RAW, END = "<!-- raw -->", "<!-- end -->"
Json = dict[str, Any]
INTRO = """<!-- Made by docs/notebook.py; edit examples/gradiometer.ipynb, not this page. -->

"""


def executed(notebook: Json) -> Json:
    """The notebook with the outputs of a run of all its cells."""
    names: Json = {"__name__": "__main__"}
    cells, count = [], 0
    with tempfile.TemporaryDirectory() as scratch, _inside(Path(scratch)):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                outputs = list(_outputs("".join(cell["source"]), names, count))
                cell = {**cell, "execution_count": count, "outputs": outputs}
            cells.append(cell)
        names.clear()  # open runs, before their folder goes
    return {**notebook, "cells": cells}


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """The working directory; matplotlib draws for nobody."""
    import matplotlib

    matplotlib.use("Agg")
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _outputs(source: str, names: Json, count: int) -> Iterator[Json]:
    """Printed text, figures, and the value of a last expression, as Jupyter keeps them."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        yield {"name": "stdout", "output_type": "stream", "text": lines}
    yield from _figures()
    if value is not None:
        data: Json = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(keepends=True)}
            data["text/plain"] = [f"<{type(value).__name__}>"]
        yield {
            "data": data,
            "execution_count": count,
            "metadata": {},
            "output_type": "execute_result",
        }


def _figures() -> Iterator[Json]:
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        drawn = io.BytesIO()
        plt.figure(number).savefig(drawn, format="png", dpi=80, metadata={"Software": None})
        image = base64.b64encode(drawn.getvalue()).decode()
        yield {"data": {"image/png": image}, "metadata": {}, "output_type": "display_data"}
    plt.close("all")


def texts_of(notebook: Json) -> list[str]:
    """The outputs that are text, cell by cell."""
    return [
        "".join(output.get("text") or output["data"].get("text/html", ()))
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
    ]


def page_of(notebook: Json) -> str:
    """The notebook as a page of the site; its pictures are written beside the others."""
    return INTRO + "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell)) + "\n"


def _cell(cell: Json) -> Iterator[str]:
    source = "".join(cell["source"]).strip()
    yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
    for output in cell.get("outputs", ()):
        yield _output(output)


def _output(output: Json) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    if "image/png" in output["data"]:
        (PICTURES / "notebook.png").write_bytes(base64.b64decode(output["data"]["image/png"]))
        return "![What the cell draws](pictures/notebook.png)"
    shown = "".join(output["data"].get("text/html", ())) or "".join(output["data"]["text/plain"])
    return f"{RAW}\n<div>{shown}</div>\n{END}"


if __name__ == "__main__":
    done = executed(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    kept = json.dumps(done, indent=1, ensure_ascii=False) + "\n"
    NOTEBOOK.write_text(kept, encoding="utf-8")
    PAGE.write_text(page_of(done), encoding="utf-8")
    print(f"wrote {NOTEBOOK} and {PAGE}")
