"""What people install: both distributions build, and work in a clean environment without torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import gradiometer
from gradiometer_labs import LABS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
# A clean environment sees neither the checkout nor the environment of the tests.
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
}


def call(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=CLEAN, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdists of core and labs, and the wheels made of those sdists."""
    folder = tmp_path_factory.mktemp("dist")
    assert UV, "the Makefile installs uv beside python"
    for project in (ROOT, ROOT / "labs"):
        call(UV, "build", "--quiet", "--out-dir", folder, project, cwd=folder)
    return folder


def distribution(built: Path, package: str, ending: str) -> Path:
    """The built file of `gradiometer` or `gradiometer_labs`."""
    (found,) = built.glob(f"{package}-{gradiometer.__version__}*{ending}")
    return found


@pytest.mark.parametrize(
    "source", [ROOT / "src" / "gradiometer", ROOT / "labs" / "src" / "gradiometer_labs"]
)
def test_a_wheel_holds_its_package_and_nothing_else(built: Path, source: Path) -> None:
    with zipfile.ZipFile(distribution(built, source.name, ".whl")) as wheel:
        files = wheel.namelist()
    inside = {name for name in files if name.startswith(f"{source.name}/")}
    others = {name.split("/")[0] for name in files} - {source.name}
    kept = [
        file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    ]
    assert inside == {f"{source.name}/{file.relative_to(source).as_posix()}" for file in kept}
    assert others == {f"{source.name}-{gradiometer.__version__}.dist-info"}


def test_the_sdist_can_be_tested(built: Path) -> None:
    with tarfile.open(distribution(built, "gradiometer", ".tar.gz")) as sdist:
        inside = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    for needed in (
        "Makefile",
        "constraints.txt",
        "mkdocs.yml",
        "benchmarks/__main__.py",
        "conftest.py",
        "labs/pyproject.toml",
        "labs/src/gradiometer_labs/__init__.py",
        "CONTRIBUTING.md",
    ):
        assert needed in inside


# The wheels are built from the sdists, so that the wheel's installation stands for both.
@pytest.mark.parametrize("ending", [".whl", pytest.param(".tar.gz", marks=pytest.mark.proof)])
def test_it_installs_in_a_clean_environment_and_reads_without_torch(
    built: Path, ending: str, tmp_path: Path
) -> None:
    assert UV
    call(UV, "venv", "--quiet", "--python", sys.executable, "clean", cwd=tmp_path)
    install = (UV, "pip", "install", "--quiet", "--python", tmp_path / "clean" / "bin" / "python")
    pins = ("--constraint", ROOT / "constraints.txt")
    call(*install, *pins, distribution(built, "gradiometer", ending), cwd=tmp_path)
    command = tmp_path / "clean" / "bin" / "gradiometer"
    assert gradiometer.__version__ in call(command, "--version", cwd=tmp_path)
    found = json.loads(call(command, "env", "--json", cwd=tmp_path))
    assert found["install"]["torch"] == 'pip install "gradiometer[torch]"'
    assert found["install"]["labs"] == 'pip install "gradiometer[labs]"'
    assert "core" not in found["install"]
    log = "step,reward,entropy\n" + "".join(
        f"{step},{0.1 + 1e-6 * (step % 7)},{0.69}\n" for step in range(200)
    )
    (tmp_path / "progress.csv").write_text(log)
    assert json.loads(call(command, "doctor", "progress.csv", "--json", cwd=tmp_path))["findings"]
    assert "reward" in call(command, "show", "progress.csv", cwd=tmp_path)
    refused = subprocess.run(
        [command, "train", "cartpole"], cwd=tmp_path, env=CLEAN, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert refused.stderr.endswith('not installed: pip install "gradiometer[labs]"\n')
    # Torch would be downloaded for minutes: what the labs say of themselves needs none of it.
    call(*install, "--no-deps", distribution(built, "gradiometer_labs", ending), cwd=tmp_path)
    listed = json.loads(call(command, "labs", "--json", cwd=tmp_path))
    assert [lab["name"] for lab in listed["labs"]] == list(LABS)
    assert "  train " in call(command, "--help", cwd=tmp_path)


def test_both_distributions_have_one_version() -> None:
    labs = tomllib.loads((ROOT / "labs" / "pyproject.toml").read_text(encoding="utf-8"))
    needed = [line for line in labs["project"]["dependencies"] if line.startswith("gradiometer")]
    assert needed == [f"gradiometer[torch]=={gradiometer.__version__}"]


def test_the_version_is_the_newest_of_the_changelog() -> None:
    headings = re.findall(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert gradiometer.__version__ == next(each for each in headings if each != "Unreleased")


def test_the_citation_and_the_first_page_name_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {gradiometer.__version__}\n" in citation
    first_page = (ROOT / "docs" / "five-minutes.md").read_text(encoding="utf-8")
    assert f"# gradiometer {gradiometer.__version__}\n" in first_page
