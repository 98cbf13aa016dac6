"""Write what the docs take from the code, and print the figures of the house.

`python docs/generate.py` writes docs/reference (metrics, names and logs of other tools, commands,
errors, public names, findings, the doctor's JSON), the lines of docs/failures.md that name findings
and faults, and our own row in the table of code bases of docs/architecture.md;
tests/guards/test_docs.py fails when they are not what the code says.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import statistics
import subprocess
import sys
import textwrap
import tomllib
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gradiometer
from gradiometer import errors
from gradiometer.cli.main import app
from gradiometer.doctor.faultmap import FAULT_IDS, FAULT_NAMES
from gradiometer.doctor.rule import rules
from gradiometer.doctor.schema import SPOKEN, VERSION, schema
from gradiometer.doctor.trainers import SETTINGS
from gradiometer.errors import UsageError
from gradiometer.metrics import CATALOGUE, Alias, Metric
from gradiometer.store.formats import formats
from gradiometer.store.importers import load
from gradiometer.store.step_column import STEP_KEYS
from gradiometer_labs.faults import all_faults

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
MADE = "<!-- Made by docs/generate.py; edit the code, not this page. -->\n\n"


class Family(NamedTuple):
    """A page of the metrics reference."""

    page: str
    title: str
    about: str
    names: str
    """A pattern: a metric belongs to the first family whose pattern its name begins with."""


FAMILIES = (
    Family("experts", "Experts", "Experts and routers.", r"grad/(<layer>/)?expert/|router/"),
    Family(
        "terms",
        "Loss terms and rewards",
        "The gradient of each loss term and of each reward function.",
        r"grad/(<block>|all)/(term|reward)/",
    ),
    Family(
        "gradients",
        "Gradients and updates",
        "Gradients per block and layer, the steps of the optimizer, and the meter itself.",
        r"grad/|optimizer/|meter/",
    ),
    Family(
        "credit",
        "Credit and episodes",
        "The credit c = -dL/dlog π(a|s) of each action, and the episodes of the environment.",
        r"credit/|env/",
    ),
    Family(
        "anatomy",
        "Anatomy",
        "Gradients by reward-variance bucket ([guide](../guide/anatomy.md)).",
        r"grad_norm/|actor/|trainer/",
    ),
    Family(
        "variance",
        "Replicates",
        "The variance of gradient estimators ([guide](../guide/replicates.md)).",
        r"variance/",
    ),
    Family(
        "outcome",
        "Logged: rewards, episodes, groups",
        "How well the policy does, and the data it is trained on.",
        r"(val/)?(rewards?\b|reward_(?!lag)|step_reward|best_reward|returns/|success|best_success"
        r"|majority|turns|\w*_length|truncated|aborted|eos_|floor|filter_kept|groups_"
        r"|zero_variance|preference/|token_accuracy)",
    ),
    Family(
        "training",
        "Logged: policy, critic, losses",
        "What trainers log about updates: losses, entropy, KL, ratios, clipping, the critic.",
        "",
    ),
)
ORDER = ("gradients", "terms", "credit", "outcome", "training", "anatomy", "variance", "experts")


def family_of(name: str) -> Family:
    """The page of a metric."""
    return next(each for each in FAMILIES if re.match(each.names, name))


def metrics_page() -> str:
    """The index of the catalogue: every metric with a link to its page."""
    intro = (
        "# Metrics\n\nA name is a slash path. `<block>` is `all`, a named block such as `actor`, or"
        " `layer.<module path>`.\n`gradiometer metrics NAME` prints the entry of a metric.\n"
    )
    families = {each.page: each for each in FAMILIES}
    return MADE + intro + "".join(_index(families[page]) for page in ORDER)


def _index(family: Family) -> str:
    head = f"\n## {family.title}\n\n{family.about} [All entries](metrics-{family.page}.md).\n\n"
    rows = (
        f"| [`{metric.name}`](metrics-{family.page}.md#{_anchor(metric.name)})"
        f" | {_sentence(metric.meaning)} |\n"
        for metric in _members(family)
    )
    return f"{head}| metric | meaning |\n|---|---|\n{''.join(rows)}"


def _anchor(title: str) -> str:
    """Of a heading, as mkdocs and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _sentence(words: str) -> str:
    """The first one, safe in a table."""
    return re.split(r"(?<=[.])\s+(?=[A-Z`])", words)[0].replace("|", "\\|")


def _members(family: Family) -> list[Metric]:
    return [each for each in CATALOGUE.values() if family_of(each.name) is family]


def family_page(family: Family) -> str:
    """Every metric of a family."""
    intro = (
        f"# {family.title}\n\n{family.about}\n*From* is the lowest tier that measures it, or"
        " *logged* when you give it to `meter.log` or it comes from a log.\n"
        "[All metrics](metrics.md).\n"
    )
    return MADE + intro + "".join(_metric(metric) for metric in _members(family))


def _metric(metric: Metric) -> str:
    lines = [f"\n## `{metric.name}`\n", f"{metric.meaning}\n", "| | |", "|---|---|"]
    lines += [
        f"| unit | {metric.unit} |",
        f"| from | {metric.origin} |",
        f"| scale | {metric.scale} |",
    ]
    if metric.healthy:
        source = f" ({_linked(metric.source)})" if metric.source else ""
        lines.append(f"| healthy | {metric.healthy}{source} |")
    if metric.remedy:
        lines.append(f"| what to do | {metric.remedy} |")
    for alias in metric.aliases:
        how = "".join(
            [
                ", opposite sign" if alias.sign < 0 else "",
                f", estimator {alias.estimator}" if alias.estimator else "",
            ]
        )
        lines.append(f"| also | `{alias.name}` ({alias.library}{how}) |")
    return "\n".join(lines) + "\n"


def names_page() -> str:
    """What the names of other tools are read as."""
    intro = (
        "# Names of other tools\n\nHow `gradiometer doctor`, the dashboard and `compare` interpret"
        " the names of other tools. Case, separators and camel case do\nnot matter (`EpRewMean` is"
        " `ep_rew_mean`); a leading `train` is optional; `eval` before a name means held-out."
        " `<...>` stands\nfor one word or more. The meaning of an unlisted name is guessed from its"
        " words if they are unambiguous, and the report says\nso; `--name reward=COLUMN` sets it"
        " yourself.\n"
    )
    found: dict[str, list[str]] = {}
    for metric in CATALOGUE.values():
        for alias in metric.aliases:
            row = f"| `{alias.name}` | {_meant(metric, alias)} |"
            found.setdefault(alias.library, []).append(row)
    tables = (
        f"\n## {library}\n\n| name | is |\n|---|---|\n" + "\n".join(rows) + "\n"
        for library, rows in sorted(found.items(), key=lambda item: item[0].lower())
    )
    return MADE + intro + "".join(tables)


def _meant(metric: Metric, alias: Alias) -> str:
    name = re.sub(r"<([a-z_]+)>", lambda part: alias.parts.get(part[1], part[0]), metric.name)
    whole = f"{alias.offset:g} " if alias.offset else ""
    sign = "− " if alias.sign < 0 else ""
    said = [f"{whole}{sign}`{name}`"]
    said += [f"estimator {alias.estimator}"] if alias.estimator else []
    said += [f"in a log of {alias.when}" if alias.when != "no policy" else "without a policy"][
        : bool(alias.when)
    ]
    return ", ".join(said)


def _linked(words: str) -> str:
    """Our own pages as links from docs/reference."""
    return re.sub(
        r"(?:(failure catalogue F\d+), )?docs/((\w+)\.md#[\w-]+)",
        lambda found: f"[{found[1] or found[3]}](../{found[2]})",
        words,
    )


def findings_page() -> str:
    """Every finding the doctor can make, and the failures they stand for."""
    lines = [
        MADE + "# Findings\n",
        (
            "Everything that `gradiometer doctor` can find. A check whose metrics are missing is"
            " skipped, and the report says how to log them.\n"
        ),
    ]
    family = ""
    for each in rules():
        if each.family != family:
            family = each.family
            lines.append(f"\n## {family}\n\n| finding | what it says | needs |\n|---|---|---|")
        words = _first_paragraph(each.judge).replace("|", "\\|")
        needs = ", ".join(f"`{name}`" for name in each.needs)
        lines.append(f"| `{each.id}` | {words} | {needs} |")
    lines.append("\n## The failure catalogue\n\n| | what goes wrong | named by |\n|---|---|---|")
    for number, words in FAULT_NAMES.items():
        ids = ", ".join(f"`{id}`" for id in FAULT_IDS[number])
        lines.append(f"| [{number}](../failures.md#{number.lower()}) | {words} | {ids} |")
    return "\n".join(lines) + "\n"


def failures_page(written: str) -> str:
    """docs/failures.md with the first and the last lines of each entry as the code has them."""
    entry = re.compile(r"^### (F\d+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
    return entry.sub(lambda found: _entry(found[1], found[2]), written)


def _entry(number: str, text: str) -> str:
    own = re.sub(r"^(\*\*|Named by|Break a lab: ).*\n", "", text, flags=re.MULTILINE).strip("\n")
    families = {each.id: each.family for each in rules()}
    ids = [f"[`{id}`](reference/findings.md#{families[id]})" for id in FAULT_IDS[number]]
    lines = [f"### {number}", "", f"**{_capital(FAULT_NAMES[number])}.**", own, ""]
    lines += [f"Named by {', '.join(ids)}.  "]
    lines += [f"Break a lab: {', '.join(_broken_labs(number)) or 'none can be broken so yet'}."]
    return "\n".join(lines) + "\n\n"


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _broken_labs(number: str) -> list[str]:
    """How to train each lab with this fault, one fault a lab."""
    first = {each.lab: each for each in reversed(all_faults()) if each.catalogue == number}
    return [
        f"`gradiometer train {' '.join([lab, *each.needs, f'fault={each.name}'])}`"
        for lab, each in sorted(first.items())
    ]


def _first_paragraph(thing: object) -> str:
    """Of its docstring, in one line."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def command_names() -> list[str]:
    """The verbs of the command line."""
    return [
        str(command.name or command.callback.__name__)
        for command in app.registered_commands
        if command.callback
    ]


def commands_page() -> str:
    """The help of every command, as the terminal shows it."""
    names = command_names()
    top, *each = _helps([[], *([name] for name in names)])
    parts = [MADE, "# Commands\n", top]
    parts += [f"\n## `gradiometer {name}`\n{text}" for name, text in zip(names, each, strict=True)]
    return "\n".join(parts)


# One child says them all: typer reads the width of the terminal when it is imported.
HELPS = """
import contextlib, io, json, sys
from gradiometer.cli.main import run
told = []
for command in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run([*command, "--help"]) == 0, command
    told.append(out.getvalue())
print(json.dumps(told))
"""


def _helps(commands: list[list[str]]) -> list[str]:
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    child = subprocess.run(
        [sys.executable, "-c", HELPS],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **plain},
    )
    return [
        "```text\n" + "\n".join(line.rstrip() for line in each.strip("\n").splitlines()) + "\n```"
        for each in json.loads(child.stdout)
    ]


def logs_page() -> str:
    """Which logs are read, by tool."""
    rows = [reads for known in formats() for reads in known.reads]
    table = "\n".join(
        f"| {row.tool} | {row.file} | {row.steps} | {row.taken} |"
        for row in sorted(rows, key=lambda row: row.tool.lower())
    )
    counted: dict[str, list[str]] = {}
    for name, axis in STEP_KEYS.items():
        counted.setdefault(axis or "what the tool says", []).append(f"`{name}`")
    steps = "\n".join(f"- {axis}: {', '.join(names)}" for axis, names in counted.items())
    return f"{MADE}{LOGS.format(table=table, steps=steps, refused=_refused())}"


def _refused() -> str:
    """What is said of a file that is no log."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "config.yaml"
        path.write_text("model: small\nlearning_rate: 0.001\n", encoding="utf-8")
        try:
            load(path)
        except UsageError as problem:
            said = str(problem).replace(f"{scratch}/", "")
        else:
            raise AssertionError("a configuration was read as a log")
    return "\n".join(textwrap.wrap(said, 96, break_on_hyphens=False))


LOGS = """# Which logs we read

`gradiometer doctor`, `show`, `import`, `plot`, `serve` and `gm.load` take a file or a folder. The
format is detected from the content, not from the file name. Names have the meaning given in
[these tables](names.md); all other names are kept unchanged.

| Tool | What to give | Steps | What is read |
|---|---|---|---|
{table}

Compressed logs (gzip, bzip2, xz) and logs alone in a zip or tar are read directly. Checkpoints,
datasets and tables of results are not logs; the error describes the content of the file.

```text
$ gradiometer doctor config.yaml
{refused}
```

## Steps

The step column is the first of these names whose column has whole numbers, rises, and differs from
row to row; case, spaces, `_` and `-` do not matter. `12/600`, `1,200` and `3k` are numbers. A
fraction of an epoch is not a step. If no column counts steps, rows are counted, and a message says
so. `run.facts["imported"]` contains the column (`step`) and what it counts (`x_axis`).

{steps}

## Folders

A folder is searched up to three levels deep. If several files belong to one training, the most
reliable is read and the others are listed. If several files of one kind have the same columns, each
is a run: the doctor judges all of them, and `gm.load` opens the longest. `--json` has the longest
run at its top level, and each run under `runs`.

## Runs that were resumed or restarted

If the steps of a series go back, the training was resumed from an earlier checkpoint or restarted.
After a resume, the new data replaces everything after its first step. A restart is another run: the
last one with at least half as many rows as the longest is read, and the others are counted (`runs`,
`run` in `run.facts["imported"]`). A message reports both. One or two late rows are only sorted.
"""


def settings_page() -> str:
    """What trainers call the settings that a fix names."""
    intro = (
        "# Setting names\n\nA fix names a setting as your trainer does, if the log or the run shows"
        " which trainer it was. These are the names it knows.\n[Recipes](../guide/recipes.md) show"
        " how to use each trainer.\n"
    )
    trainers = sorted({name for names in SETTINGS.values() for name in names}, key=str.lower)
    tables = (
        f"\n## {trainer}\n\n| sets | called |\n|---|---|\n"
        + "".join(
            f"| {setting} | {names[trainer]} |\n"
            for setting, names in SETTINGS.items()
            if trainer in names
        )
        for trainer in trainers
    )
    return MADE + intro + "".join(tables)


def errors_page() -> str:
    """The tree of errors."""
    tree = inspect.cleandoc(errors.__doc__ or "")
    title, _, rest = tree.partition("\n\n")
    return f"{MADE}# Errors\n\n{title}\n\n```text\n{inspect.cleandoc(rest)}\n```\n"


def api_page() -> str:
    """The public names."""
    parts = [
        MADE,
        "# Python\n\n`import gradiometer as gm`. Everything public is here; the rest may change.\n",
    ]
    for name in sorted(gradiometer.__all__):
        thing = getattr(gradiometer, name)
        if callable(thing):
            parts.append(
                f"\n## `gm.{name}`\n\n{_signature(name, thing)}{inspect.getdoc(thing) or ''}\n"
            )
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
        f"- `{name}`: {_first_paragraph(member)}\n"
        for name, member in vars(thing).items()
        if not name.startswith("_")
        and (callable(member) or isinstance(member, property))
        and inspect.getdoc(member)
        and name not in ("step_measured", "rescanned", "boundary", "event", "warn", "give_up")
    ]


def shape_of_the_code() -> dict[str, float]:
    """Lines of functions and modules, and the share of functions that are annotated throughout, by
    Python's own parser."""
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
        f"| **gradiometer** | {shape['function median']:.0f} / {shape['function p90']:.0f}, max"
        f" {shape['function max']:.0f} | {shape['module median']:.0f}, max"
        f" {shape['module max']:.0f} | {100 * shape['annotated']:.0f} % |"
    )


def doctor_json_page() -> str:
    """What `gradiometer doctor --json` prints, record by record."""
    made = schema()
    intro = (
        "# The doctor's JSON\n\n`gradiometer doctor RUN --json` prints one object, a *report*."
        " `gradiometer doctor --schema` prints its JSON schema (draft\n2020-12), of which this page"
        f" is made. This is version {VERSION}, which every report holds as `schema`: keys may be"
        " added, none is removed or\nchanges its meaning without a new number. NaN and the"
        ' infinities are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.\n'
    )
    report = {"description": made["description"], "properties": {}}
    report["properties"] = {**made["$defs"]["diagnosis"]["properties"], **made["properties"]}
    parts = {"report": report, **{k: v for k, v in made["$defs"].items() if k != "diagnosis"}}
    tables = (
        f"\n## {name}\n\n{part['description']}\n\n| key | type | meaning |\n|---|---|---|\n"
        + "".join(
            f"| `{key}` | {_typed(kind)} | {kind['description']} |\n"
            for key, kind in part["properties"].items()
        )
        for name, part in parts.items()
    )
    return MADE + intro + "".join(tables)


def _typed(kind: dict[str, Any]) -> str:
    """A part of the schema as people say it."""
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})" if name != "diagnosis" else "the keys above"
    if "anyOf" in kind:
        named = [_typed(each) for each in kind["anyOf"] if each != {"enum": SPOKEN}]
        return " or ".join(named)
    if "enum" in kind:
        return ", ".join(f"`{each}`" for each in kind["enum"])
    if "const" in kind:
        return f"`{kind['const']}`"
    if kind["type"] == "array":
        return f"list of {_typed(kind['items'])}"
    if "additionalProperties" in kind:
        return f"object of {_typed(kind['additionalProperties'])} by name"
    return str(kind["type"])


def sources_page() -> str:
    """What the documents that the project grew from ask for, row by row of docs/sources.toml."""
    intro = (
        "# What the sources asked for\n\nThe project grew from five documents. Each thing they ask"
        " for, a command that shows it, and the test that fails when it does\nnot hold. Of commands"
        " `RUN` stands for the folder of a run. `tests/guards/test_sources.py` checks that each"
        " test exists and each command parses.\n"
    )
    found: dict[str, list[str]] = {}
    for row in source_rows():
        path, _, test = row["test"].partition("::")
        shown = f"`{row['command']}`".replace("|", "\\|") if row.get("command") else ""
        line = f"| {row['item']} | {shown} | `{path}`: `{test}` |"
        found.setdefault(row["document"], []).append(line)
    tables = (
        f"\n## {document}\n\n| what | command | test |\n|---|---|---|\n" + "\n".join(lines) + "\n"
        for document, lines in found.items()
    )
    return MADE + intro + "".join(tables)


def source_rows() -> list[dict[str, str]]:
    """The rows: document, item, test, and a command where there is one to type."""
    rows: list[dict[str, str]] = tomllib.loads((DOCS / "sources.toml").read_text(encoding="utf-8"))[
        "row"
    ]
    return rows


PAGES = {
    "metrics.md": metrics_page,
    **{f"metrics-{each.page}.md": partial(family_page, each) for each in FAMILIES},
    "names.md": names_page,
    "commands.md": commands_page,
    "errors.md": errors_page,
    "api.md": api_page,
    "findings.md": findings_page,
    "doctor-json.md": doctor_json_page,
    "logs.md": logs_page,
    "settings.md": settings_page,
    "sources.md": sources_page,
}

if __name__ == "__main__":
    from house import report  # beside this file; the tests load this one without its folder

    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
        print(f"wrote {REFERENCE / name}")
    failures = DOCS / "failures.md"
    failures.write_text(failures_page(failures.read_text(encoding="utf-8")), encoding="utf-8")
    architecture = DOCS / "architecture.md"
    text = architecture.read_text(encoding="utf-8")
    row = row_of_ours(shape_of_the_code())
    architecture.write_text(
        re.sub(r"^\| \*\*gradiometer\*\* .*$", row, text, flags=re.MULTILINE), encoding="utf-8"
    )
    print(report())
