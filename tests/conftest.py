"""What every test shares: quiet threads and a place of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test asserts a time: on a busy machine hypothesis' own deadline of 200 ms would.
settings.register_profile("gradiometer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gradiometer")

# A CI that starts us in the background has SIGINT ignored, and every child inherits that: tests that interrupt a real
# process would wait for ever.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves a run in the project, whatever it forgets to name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADIOMETER_DISABLED", raising=False)


# Gloo's threads may still be running when C++ takes down its globals, and then the process dies with "terminate called
# without an active exception" after everything is done and said. So the ranks part in good order and leave at once.
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
    """Run a script in several processes of one gloo group, `rank world *arguments` in sys.argv; what each printed.

    A script raises if something is wrong, which makes it end with another code than 0.
    """

    def start(script: str, world: int, *arguments: object) -> list[tuple[str, str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        call = [sys.executable, "-W", "ignore", "-c", script + LEAVE]
        processes = [
            subprocess.Popen(
                [*call, str(rank), str(world), *map(str, arguments)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            outputs = [process.communicate(timeout=120) for process in processes]
        finally:  # a rank that hangs is one failed test, and leaves no pipe open for the next
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        assert [process.returncode for process in processes] == [0] * world, outputs
        return outputs

    return start
