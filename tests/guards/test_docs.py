"""The docs say what the code does: generated pages are equal, links lead somewhere, the README
runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from forkserver import python

import gradiometer
from gradiometer import errors
from gradiometer.doctor.faultmap import FAULT_NAMES, failure, mathematics
from gradiometer.metrics import CATALOGUE, Alias, resolve
from gradiometer.names import squeezed

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


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
    reference = {
        name: (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        for name in GENERATE.PAGES
    }
    for name in CATALOGUE:
        assert f"`{name}`" in reference["metrics.md"]
    for command in GENERATE.command_names():
        assert f"## `gradiometer {command}`" in reference["commands.md"]
    for name in errors.__all__:
        if isinstance(getattr(errors, name), type):  # a helper that raises one is no error
            assert name in reference["errors.md"]
    for name in gradiometer.__all__:
        assert name == "__version__" or f"`gm.{name}`" in reference["api.md"]


def test_every_metric_explains_itself() -> None:
    for metric in CATALOGUE.values():
        assert metric.unit
        assert metric.meaning.endswith(".")
        assert (
            not (metric.healthy and metric.origin != "logged") or metric.remedy or metric.source
        ), metric.name


def test_no_alias_means_two_things() -> None:
    meant: dict[str, list[tuple[str, Alias]]] = {}
    for metric in CATALOGUE.values():
        for alias in metric.aliases:
            meant.setdefault(squeezed(alias.name), []).append((metric.name, alias))
    for name, found in meant.items():
        if len({(metric, alias.sign) for metric, alias in found}) > 1:  # the log tells them apart
            assert sum(not alias.when for _, alias in found) <= 1, name
    assert not {alias.name for found in meant.values() for _, alias in found} & set(CATALOGUE)
    metric, alias = resolve("train/entropy_loss") or (None, None)
    assert metric is not None
    assert alias is not None
    assert (metric.name, alias.sign) == ("entropy", -1)


def test_the_failure_catalogue_names_the_findings_and_faults_of_the_code() -> None:
    written = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    assert written == GENERATE.failures_page(written), "run `make docs`"
    assert re.findall(r"^### (F\d+)$", written, re.MULTILINE) == [*GENERATE.FAULT_NAMES]


def test_the_mathematics_names_modules_that_exist() -> None:
    page = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:maths|probes|capture|doctor)/[\w/.]+)`", page):
        assert (ROOT / "src" / "gradiometer" / name).exists(), name


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


TEXTS = [
    *PAGES,
    *(
        file
        for folder in (ROOT / "src", ROOT / "labs" / "src")
        for file in folder.rglob("*")
        if file.suffix in {".py", ".toml", ".js"}
    ),
]


def test_every_reference_to_a_page_of_ours_can_be_opened() -> None:
    named = [
        (file, found)
        for file in TEXTS
        for found in re.findall(r"docs/[\w/]+\.md(?:#[\w-]+)?", file.read_text(encoding="utf-8"))
    ]
    assert named
    for file, reference in named:
        name, _, anchor = reference.partition("#")
        assert (ROOT / name).exists(), (file, reference)
        assert not anchor or anchor in anchors(ROOT / name), (file, reference)


def test_every_reference_of_a_finding_to_our_own_pages_can_be_opened() -> None:
    sections = re.compile(r"\bmathematics(?:: |\(\")([A-Z][\w -]*\w)")
    used = {
        title
        for file in TEXTS
        if file.suffix == ".py"
        for title in sections.findall(file.read_text(encoding="utf-8"))
    }
    assert used
    for reference in [*map(mathematics, used), *map(failure, FAULT_NAMES)]:
        ((page, anchor),) = re.findall(r"\((docs/\w+\.md)#([\w-]+)\)$", reference)
        assert anchor in anchors(ROOT / page), reference


def test_nothing_cites_a_document_that_is_not_here() -> None:
    for file in TEXTS:
        assert not re.search(
            r"\bFORMULAS\b|\bFIELD\b|[Ss]ource 00\d", file.read_text(encoding="utf-8")
        ), file


def test_links_lead_somewhere() -> None:
    nowhere = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in links_of(page)
        if not (target.startswith("https://") or (page.parent / target).exists())
    ]
    assert nowhere == []


def links_of(page: Path) -> list[str]:
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"\]\(([^)#]+)", prose)


README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# What a reader has around the README's lines: a loop of their own, SB3, a trainer of TRL with its
# arguments.
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "place", "series"),
    [(PLAIN, 0, ("plain", "reward")), (SB3, 1, ("sb3", "grad/actor/norm/raw")), (TRL, 2, None)],
    ids=["plain torch", "sb3", "trl"],
)
def test_the_python_of_the_readme_runs(
    before: str, place: int, series: tuple[str, str] | None, tmp_path: Path
) -> None:
    code = f"{before}\n{SNIPPETS[place]}"
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "GradiometerWarning" not in done.stderr
    if series:
        steps, _values = gradiometer.load(tmp_path / "runs" / series[0]).series(series[1])
        assert len(steps) > 1


def test_the_diagnosis_in_the_readme_is_what_the_doctor_says() -> None:
    """Each line of it is in the words of the rule, so that the README cannot grow old."""
    (told,) = re.findall(r"```text\n(broken: .*?)```", README, re.DOTALL)
    source = "".join(
        file.read_text(encoding="utf-8")
        for file in (ROOT / "src/gradiometer/doctor/rules").glob("wiring*.py")
    )
    for words in (
        "shapes-broadcast",
        "Give both sides the same shape: values.squeeze(-1) (or values.view(-1)) before the",
        "Log-probs of a policy with several action components: dist.log_prob(actions).sum(-1)",
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


def test_every_file_that_architecture_and_contributing_name_is_there() -> None:
    """A path is looked up from the root and from either package, a bare name anywhere in them."""
    homes = [ROOT, ROOT / "src" / "gradiometer", ROOT / "labs" / "src" / "gradiometer_labs"]
    known = {file.name for home in homes[1:] for file in home.rglob("*") if file.is_file()}
    missing = [
        f"{page}: {path}"
        for page in ("docs/architecture.md", "CONTRIBUTING.md")
        for path in re.findall(
            r"`([\w./-]+\.(?:py|js|toml))\b", (ROOT / page).read_text(encoding="utf-8")
        )
        if not any((home / path).exists() for home in homes)
        and not ("/" not in path and path in known)
    ]
    assert missing == []


GALLERY = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


def test_each_case_of_the_gallery_has_its_picture_and_a_finding_of_the_doctor() -> None:
    """What is shown are real runs; the words of their fixes are those of the rules of today."""
    cases = GALLERY.split("\n## ")[1:]
    rules = {each.id for each in GENERATE.rules()}
    words = squeezed_words(
        "".join(
            file.read_text(encoding="utf-8")
            for file in (ROOT / "src" / "gradiometer" / "doctor").rglob("*.py")
        )
    )
    assert 6 <= len(cases) <= 12
    for case in cases:
        (picture,) = re.findall(r"\((pictures/gallery/[\w-]+\.svg)\)", case)
        drawn = (ROOT / "docs" / picture).read_text(encoding="utf-8")
        (id,) = re.findall(r"^[A-Z]+ ([a-z-]+) · ", case, re.MULTILINE)
        assert id in rules
        assert f"{id}, step" in drawn
        line = re.findall(r"^  fix +(?:1\. )?(.+)$", case, re.MULTILINE)[0]
        fix = squeezed_words(line)  # the name of a setting may be put into it
        assert any(fix[start : start + 20] in words for start in range(len(fix) - 19)), line


def squeezed_words(text: str) -> str:
    """Letters alone: a string of the code may be broken anywhere."""
    return re.sub(r"[^a-z]", "", text.lower())


def test_the_changed_lines_of_the_gallery_are_in_the_programs() -> None:
    programs = "".join(
        file.read_text(encoding="utf-8")
        for file in [
            *(ROOT / "labs" / "programs").glob("*.py"),
            ROOT / "src" / "gradiometer" / "demo" / "train.py",
        ]
    )
    changed = re.findall(
        r"^- (.+)$", "".join(re.findall(r"```diff\n(.*?)```", GALLERY, re.DOTALL)), re.MULTILINE
    )
    assert changed
    assert [line for line in changed if line not in programs] == []
