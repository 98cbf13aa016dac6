"""What people install: wheel and sdist build, and work in a clean environment that has no torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import gradiometer

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gradiometer"
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
# A clean environment sees neither the checkout nor the environment of the tests.
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
}


def call(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=CLEAN, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel made of that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    assert UV, "the Makefile installs uv beside python"
    call(UV, "build", "--quiet", "--out-dir", folder, ROOT, cwd=folder)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("gradiometer/")}
        others = {name.split("/")[0] for name in wheel.namelist()} - {"gradiometer"}
    kept = [file for file in SOURCE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert inside == {f"gradiometer/{file.relative_to(SOURCE).as_posix()}" for file in kept}
    assert others == {f"gradiometer-{gradiometer.__version__}.dist-info"}


@pytest.mark.slow
def test_the_sdist_can_be_tested(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        inside = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    for needed in (
        "Makefile",
        "constraints.txt",
        "mkdocs.yml",
        "benchmarks/__main__.py",
        "tests/conftest.py",
        "CONTRIBUTING.md",
    ):
        assert needed in inside


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_installs_in_a_clean_environment_and_reads_without_torch(built: Path, kind: str, tmp_path: Path) -> None:
    assert UV
    call(UV, "venv", "--quiet", "--python", sys.executable, "clean", cwd=tmp_path)
    python = tmp_path / "clean" / "bin" / "python"
    pins = ("--constraint", ROOT / "constraints.txt")
    call(UV, "pip", "install", "--quiet", "--python", python, *pins, next(built.glob(kind)), cwd=tmp_path)
    command = tmp_path / "clean" / "bin" / "gradiometer"
    assert gradiometer.__version__ in call(command, "--version", cwd=tmp_path)
    found = json.loads(call(command, "env", "--json", cwd=tmp_path))
    assert found["install"]["torch"] == 'pip install "gradiometer[torch]"'
    assert "core" not in found["install"]
    log = "step,reward,entropy\n" + "".join(f"{step},{0.1 + 1e-6 * (step % 7)},{0.69}\n" for step in range(200))
    (tmp_path / "progress.csv").write_text(log)
    assert json.loads(call(command, "doctor", "progress.csv", "--json", cwd=tmp_path))["findings"]
    assert "reward" in call(command, "show", "progress.csv", cwd=tmp_path)


def test_the_version_is_the_newest_of_the_changelog() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert gradiometer.__version__ == next(each for each in headings if each != "Unreleased")
