"""What a training printed into a Jupyter notebook: the outputs of its cells, as console text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradiometer.errors import UsageError
from gradiometer.store.formats import Reads, ending, log_format
from gradiometer.store.formats.console import ConsoleText
from gradiometer.store.logs import Log
from gradiometer.store.opening import read_json_file

__all__ = ["read_notebook"]

SUFFIX = ".ipynb"
CELL = re.compile(r"</t[dh]>\s*", re.IGNORECASE)
ROW = re.compile(r"</tr>\s*", re.IGNORECASE)
TAG = re.compile(r"<[^<>]{0,400}>")


# A notebook is JSON, so it is asked first; in a folder any other log is the better one.
@log_format("notebook-beside", rank=94, find=ending(SUFFIX))
@log_format(
    "notebook",
    rank=58,
    title="a notebook's outputs",
    detect=lambda path, start: path.suffix == SUFFIX,
    reads=[
        Reads(
            tool="Jupyter, Colab, Kaggle",
            file="a notebook (`.ipynb`) that was saved with its outputs",
            steps="as on the console",
            taken="what cells printed, and the table that transformers and unsloth show",
        )
    ],
)
def read_notebook(path: Path) -> Log:
    """The log in what the cells of a notebook printed and showed."""
    try:
        content = read_json_file(path)
    except UsageError:
        raise
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{path}: not a notebook ({problem}); was it cut off?") from problem
    text = ConsoleText()
    for piece in _printed(content):
        text.feed(piece.encode("utf-8", errors="replace") + b"\n")
    text.end()
    return text.log(path)


def _printed(content: Any) -> Iterator[str]:
    cells = content.get("cells") if isinstance(content, dict) else None
    for cell in cells if isinstance(cells, list) else ():
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else ():
            if isinstance(output, dict):
                yield from _of_output(output)


def _of_output(output: dict[str, Any]) -> Iterator[str]:
    if "text" in output:
        yield _joined(output["text"])
    shown = output.get("data")
    if isinstance(shown, dict) and "text/html" in shown:
        yield _rows(_joined(shown["text/html"]))
    elif isinstance(shown, dict) and "text/plain" in shown:
        yield _joined(shown["text/plain"])


def _joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def _rows(text: str) -> str:
    """A table of HTML as lines of cells."""
    lines = ROW.sub("\n", CELL.sub("\t", text.replace("\n", " ")))
    plain = (html.unescape(TAG.sub("", line)).strip(" ") for line in lines.split("\n"))
    return "\n".join(line.strip("\t ") for line in plain)
