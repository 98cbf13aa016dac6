"""What every test shares: quiet threads and a place of its own."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# No test asserts a time: on a busy machine hypothesis' own deadline of 200 ms would.
# `make proofs` takes the second profile and draws Hypothesis' own number of examples.
for profile, examples in (("gradiometer", 25), ("proofs", 100)):
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("gradiometer")

# What is imported stays: nobody need look through it for garbage.
gc.disable()

# A CI that starts us in the background has SIGINT ignored, and every child inherits that: tests
# that interrupt a real process would wait for ever.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _beside(name: str) -> ModuleType:
    """A module of ours, found by file since tests are no package; tests import it by its name."""
    file = Path(__file__).with_name("tests") / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


forkserver = _beside("forkserver")
_beside("curves")
_beside("nvml")
_beside("command_lines")
postgres_server = _beside("postgres_server")

WHOLE_FILE_IS_SLOW = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow\b", re.MULTILINE)
# Those that take longest begin first, so that no worker is left with one at the end.
LONGEST = (
    "test_soak.py",
    "test_quick.py",
    "test_script.py",
    "test_browser.py",
    "test_examples.py",
    "test_transformers.py",
    "test_trl.py",
    "test_package.py",
    "test_benchmarks.py",
    "test_distributed_trouble.py",
    "test_fsdp.py",
    "test_page_shell.py",
    "test_exporters.py",
    "test_replicates.py",
    "test_plot.py",
    "test_run.py",
)


LONG_FORMS = tuple(
    line.partition("  <-")[0]
    for line in (Path(__file__).parent / "tests" / "long_forms.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is slow as a whole is not even imported when nobody wants its tests: most of
    them import a trainer."""
    asked = str(config.option.markexpr)
    if not asked.startswith("not slow") or collection_path.suffix != ".py":
        return None
    found = WHOLE_FILE_IS_SLOW.search(collection_path.read_text(encoding="utf-8"))
    return True if found else None


@pytest.hookimpl(tryfirst=True)  # before markers choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, the others as they come. Whoever looks at trainings of all labs or into a
    browser waits for them; a long form is a proof."""
    for item in items:
        if item.nodeid.startswith(LONG_FORMS):
            item.add_marker(pytest.mark.proof)
        if {"lab_runs", "chromium"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


def pytest_collection_finish() -> None:
    """What the trainers' modules hold, half a million objects, is not looked through again at every
    collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # at 700, 7 % of the CPU time of 67 small tests went there, now 5 %
    gc.enable()


def pytest_unconfigure() -> None:
    """The warm Python goes with us."""
    forkserver.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The last to leave ends the server that the workers shared."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        known = getattr(session.config, "_tmp_path_factory", None)
        if getattr(known, "_basetemp", None) is not None:
            postgres_server.stop_shared(known.getbasetemp())


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a PostgreSQL server; the tests are skipped where none is installed."""
    if postgres_server.binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install -y postgresql")
    own = tmp_path_factory.getbasetemp()
    return str(postgres_server.shared(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves a run in the project, whatever it forgets to name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADIOMETER_DISABLED", raising=False)


# Gloo's threads may still be running when C++ takes down its globals, and then the process dies
# with "terminate called without an active exception" after everything is done and said. So the
# ranks part in good order and leave at once.
LEAVE = """
if torch.distributed.is_initialized():
    import os, sys
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
"""

Ranks = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def ranks() -> Ranks:
    """Run a script in several processes of one gloo group, `rank world *arguments` in sys.argv;
    what each printed.

    A script raises if something is wrong, which makes it end with another code than 0. `codes` are
    those to expect. A rank that hangs is one failed test: it is killed, and nobody else waits.
    """

    def start(
        script: str, world: int, *arguments: object, codes: Sequence[int] | None = None
    ) -> list[tuple[str, str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        call = ("-W", "ignore", "-c", script + LEAVE)
        done = forkserver.together(
            *(
                forkserver.Job(words=(*call, rank, world, *arguments), env=environment)
                for rank in range(world)
            )
        )
        assert [each.returncode for each in done] == list(codes or [0] * world), done
        return [(each.stdout, each.stderr) for each in done]

    return start
