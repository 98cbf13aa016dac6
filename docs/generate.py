"""Write docs/reference from the code: the metrics, the commands, the errors, the public names and the findings.

`python docs/generate.py` writes the pages, and our own row in the table of code bases of docs/architecture.md;
tests/guards/test_docs.py fails when they are not what the code says.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import gradiometer
from gradiometer import errors
from gradiometer.cli.main import app
from gradiometer.doctor.faultmap import FAULT_IDS, FAULT_NAMES
from gradiometer.doctor.rule import rules
from gradiometer.metrics import CATALOGUE, Metric

REFERENCE = Path(__file__).parent / "reference"
MADE = "<!-- Made by docs/generate.py; edit the code, not this page. -->\n\n"


def metrics_page() -> str:
    """Every metric of the catalogue."""
    intro = (
        "# Metrics\n\nA name is a slash path. `<block>` is `all`, a named block such as `actor`, or `layer.<module path>`.\n"
        "*From* is the lowest tier that measures it, or *logged* when you give it to `meter.log`.\n"
    )
    return MADE + intro + "".join(_metric(metric) for metric in CATALOGUE.values())


def _metric(metric: Metric) -> str:
    lines = [f"\n## `{metric.name}`\n", f"{metric.meaning}\n", "| | |", "|---|---|"]
    lines += [f"| unit | {metric.unit} |", f"| from | {metric.origin} |", f"| scale | {metric.scale} |"]
    if metric.healthy:
        lines.append(f"| healthy | {metric.healthy}{f' ({metric.source})' if metric.source else ''} |")
    if metric.remedy:
        lines.append(f"| what to do | {metric.remedy} |")
    for alias in metric.aliases:
        how = "".join(
            [", opposite sign" if alias.sign < 0 else "", f", estimator {alias.estimator}" if alias.estimator else ""]
        )
        lines.append(f"| also | `{alias.name}` ({alias.library}{how}) |")
    return "\n".join(lines) + "\n"


def findings_page() -> str:
    """Every finding the doctor can make, and the failures they stand for."""
    lines = [
        MADE + "# Findings\n",
        "What `gradiometer doctor` can find. A rule whose metrics are missing says so, and how to log them.\n",
    ]
    family = ""
    for each in rules():
        if each.family != family:
            family = each.family
            lines.append(f"\n## {family}\n\n| finding | what it says | needs |\n|---|---|---|")
        words = (inspect.getdoc(each.judge) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        needs = ", ".join(f"`{name}`" for name in each.needs)
        lines.append(f"| `{each.id}` | {words} | {needs} |")
    lines.append("\n## The failure catalogue\n\n| | what goes wrong | named by |\n|---|---|---|")
    for number, words in FAULT_NAMES.items():
        ids = ", ".join(f"`{id}`" for id in FAULT_IDS[number])
        lines.append(f"| {number} | {words} | {ids} |")
    return "\n".join(lines) + "\n"


def command_names() -> list[str]:
    """The verbs of the command line."""
    return [str(command.name or command.callback.__name__) for command in app.registered_commands if command.callback]


def commands_page() -> str:
    """The help of every command, as the terminal shows it."""
    parts = [MADE, "# Commands\n", _help()]
    parts += [f"\n## `gradiometer {name}`\n{_help(name)}" for name in command_names()]
    return "\n".join(parts)


def _help(*command: str) -> str:
    call = [sys.executable, "-m", "gradiometer", *command, "--help"]
    plain = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    shown = subprocess.run(call, capture_output=True, text=True, check=True, env=plain).stdout
    return "```text\n" + "\n".join(line.rstrip() for line in shown.strip("\n").splitlines()) + "\n```"


def errors_page() -> str:
    """The tree of errors."""
    tree = inspect.cleandoc(errors.__doc__ or "")
    title, _, rest = tree.partition("\n\n")
    return f"{MADE}# Errors\n\n{title}\n\n```text\n{inspect.cleandoc(rest)}\n```\n"


def api_page() -> str:
    """The public names."""
    parts = [MADE, "# Python\n\n`import gradiometer as gm`. Everything public is here; the rest may change.\n"]
    for name in sorted(gradiometer.__all__):
        thing = getattr(gradiometer, name)
        if callable(thing):
            parts.append(f"\n## `gm.{name}`\n\n{_signature(name, thing)}{inspect.getdoc(thing) or ''}\n")
            parts += _methods(thing) if inspect.isclass(thing) else []
        elif inspect.ismodule(thing):
            parts.append(f"\n## `gm.{name}`\n\n{inspect.getdoc(thing) or ''}\n")
    return "".join(parts)


def _signature(name: str, thing: object) -> str:
    if inspect.isclass(thing):
        return ""
    signature = inspect.signature(thing)  # type: ignore[arg-type]
    lines, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            lines.append("    *,\n")
            starred = True
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},\n")
    return f"```python\n{name}(\n{''.join(lines)}) -> {signature.return_annotation}\n```\n\n"


def _methods(thing: type) -> list[str]:
    if issubclass(thing, Exception):
        return []
    return [
        f"- `{name}`: {(inspect.getdoc(member) or '').splitlines()[0]}\n"
        for name, member in vars(thing).items()
        if not name.startswith("_")
        and (callable(member) or isinstance(member, property))
        and inspect.getdoc(member)
        and name not in ("round_ended", "rescanned", "boundary", "event", "warn", "give_up")
    ]


def shape_of_the_code() -> dict[str, float]:
    """Lines of functions and modules, and the share of functions that are annotated throughout, by Python's own parser."""
    files = sorted(Path(gradiometer.__file__).parent.rglob("*.py"))
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]
    lines = [(each.end_lineno or each.lineno) - each.lineno + 1 for each in functions]
    modules = [file.read_text(encoding="utf-8").count("\n") for file in files]
    return {
        "function median": statistics.median(lines),
        "function p90": statistics.quantiles(lines, n=10)[-1],
        "function max": max(lines),
        "module median": statistics.median(modules),
        "module max": max(modules),
        "annotated": sum(map(_annotated, functions)) / len(functions),
    }


def _annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    named = all(each.annotation is not None for each in given if each.arg not in ("self", "cls"))
    return named and function.returns is not None


def row_of_ours(shape: dict[str, float]) -> str:
    """Gradiometer's row in the table of code bases."""
    return (
        f"| **gradiometer** | {shape['function median']:.0f} / {shape['function p90']:.0f}, max {shape['function max']:.0f} "
        f"| {shape['module median']:.0f}, max {shape['module max']:.0f} | {100 * shape['annotated']:.0f} % |"
    )


PAGES = {
    "metrics.md": metrics_page,
    "commands.md": commands_page,
    "errors.md": errors_page,
    "api.md": api_page,
    "findings.md": findings_page,
}

if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
        print(f"wrote {REFERENCE / name}")
    architecture = REFERENCE.parent / "architecture.md"
    text = architecture.read_text(encoding="utf-8")
    row = row_of_ours(shape_of_the_code())
    architecture.write_text(re.sub(r"^\| \*\*gradiometer\*\* .*$", row, text, flags=re.MULTILINE), encoding="utf-8")
