"""How large the house is, and how far a measured step walks through it.

`python docs/house.py` prints the figures; `make docs` does so too. Core is `src/gradiometer`, which
`pip install gradiometer` brings; labs is the second distribution.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
CORE = ROOT / "src" / "gradiometer"
LABS = ROOT / "labs" / "src" / "gradiometer_labs"
SHAPE_OF_A_LAB = ("Config", "Pieces", "Result")
"""Classes that every lab has under the same name, as `Lab` and the faults look for them."""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def files(folder: Path) -> list[Path]:
    """Its Python files."""
    return sorted(folder.rglob("*.py"))


def lines(file: Path) -> int:
    """How many lines it has, blank ones too."""
    return file.read_text(encoding="utf-8").count("\n")


def tokens_per_line(folder: Path) -> float:
    """Tokens of code on a line that has any; docstrings and other strings count as one."""
    found: Counter[tuple[Path, int]] = Counter()
    for file in files(folder):
        with file.open("rb") as opened:
            for token in tokenize.tokenize(opened.readline):
                if token.type not in LAYOUT:
                    found[file, token.start[0]] += 1
    return sum(found.values()) / len(found)


def nodes(folder: Path) -> Iterator[tuple[Path, ast.AST]]:
    """Every node of its syntax trees."""
    for file in files(folder):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            yield file, node


def classes_twice(*folders: Path) -> dict[str, list[str]]:
    """The names that more than one class has, private ones apart, with the files of the classes."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for file, node in nodes(folder):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                place = file.relative_to(folder.parent).as_posix()
                found.setdefault(node.name, []).append(place)
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def labs_classes_twice() -> dict[str, list[str]]:
    """The same where one of the classes is in the labs, but for those that make a folder a lab."""
    both = classes_twice(CORE, LABS)
    return {
        name: places
        for name, places in both.items()
        if name not in SHAPE_OF_A_LAB and any(place.startswith(LABS.name) for place in places)
    }


def rule_lines() -> list[int]:
    """The lines of each rule of the doctor, from `def` to the end."""
    return [
        (node.end_lineno or 0) - node.lineno + 1
        for _, node in nodes(CORE / "doctor" / "rules")
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(each, ast.Call) and getattr(each.func, "id", "") == "rule"
            for each in node.decorator_list
        )
    ]


def measured_step() -> tuple[set[str], set[tuple[str, str]]]:
    """Files and functions that one measured step enters on the training's thread.

    A small policy at the default tier, six steps in: backward, clip and step, with nothing else.
    """
    import torch

    import gradiometer as gm

    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    entered: set[tuple[str, str]] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(CORE)):
            file = Path(code.co_filename).relative_to(CORE).as_posix()
            entered.add((file, code.co_qualname))

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    with gm.watch(model, optimizer, run=None, budget=None):
        for _ in range(6):
            step()
        sys.setprofile(enter)
        try:
            step()
        finally:
            sys.setprofile(None)
    return {file for file, _ in entered}, entered


def report() -> str:
    """All of it, a line each."""
    twice, labs_twice = classes_twice(CORE), labs_classes_twice()
    walked, entered = measured_step()
    rows = [
        ("core", f"{sum(map(lines, files(CORE))):,} lines in {len(files(CORE))} files"),
        ("labs", f"{sum(map(lines, files(LABS))):,} lines in {len(files(LABS))} files"),
        ("tokens a line", f"core {tokens_per_line(CORE):.1f}, labs {tokens_per_line(LABS):.1f}"),
        ("a rule", f"{statistics.median(rule_lines()):.0f} lines in the median"),
        ("a measured step", f"{len(walked)} files, {len(entered)} functions"),
        ("class names twice", f"{len(twice)} in the core, {len(labs_twice)} with the labs"),
    ]
    named = (*twice.items(), *labs_twice.items())
    rows += [("", f"{name}: {', '.join(places)}") for name, places in named]
    return "\n".join(f"{name:<18} {text}" for name, text in rows)


if __name__ == "__main__":
    print(report())
