"""A real server in a thread, and a real Chromium."""

from __future__ import annotations

import fcntl
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response
from starlette.routing import Route

from gradiometer.dashboard import run_index
from gradiometer.dashboard.app import STATIC, create_app
from gradiometer.dashboard.server import bind
from gradiometer.errors import UsageError

Serve = Callable[[Path], Any]


def hurry(app: Any) -> None:
    """Ten times the pace: of the watcher, and of the page that follows it."""
    live = (STATIC / "live.js").read_text()
    for slow, quick in (("POLL = 3000;", "POLL = 300;"), ("PACE = 1000;", "PACE = 100;")):
        assert slow in live
        live = live.replace(slow, quick)
    script = Route("/static/live.js", lambda _: Response(live, media_type="text/javascript"))
    app.router.routes.insert(0, script)
    broadcast = app.state.broadcast
    listen = broadcast.listen

    async def told() -> AsyncIterator[dict[str, Any]]:
        async for message in listen():
            yield {**message, "retry": 200}  # a browser waits three seconds before it comes back

    broadcast.listen = told
    broadcast._every = 0.1


_ports: list[int] = []
"""Of the servers of this process. A browser keeps what it has compiled by address, and Plotly at a new
one costs two seconds: so a server takes the place of one that has ended."""


def listening_socket(port: int) -> socket.socket:
    for number in [port] if port else [*_ports, 0]:
        with suppress(UsageError):  # somebody listens there
            found = bind("127.0.0.1", number)
            _ports.extend({found.getsockname()[1]}.difference(_ports))
            return found
    raise AssertionError(f"port {port} is taken")


@contextmanager
def served(root: Path, *, port: int = 0, quick: bool = False, **given: Any) -> Iterator[str]:
    """The address of a server over a folder, with uvicorn and a socket as `gradiometer serve` has
    them; a `quick` one looks for changes ten times as often."""
    listening = listening_socket(port)
    app = create_app(root, **given)
    if quick:
        hurry(app)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        if quick:
            patch.setattr(run_index, "LOOK_SECONDS", 0.2)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
            listening.close()
            assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def serving() -> Serve:
    """`with serving(folder) as address: ...`"""
    return served


TINY_SOKOBAN = (
    "model.hidden_size=32",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.intermediate_size=32",
    "env.max_turns=2",
    "env.max_actions_per_turn=2",
    "warm_start.steps=10",
    "warm_start.batch_size=8",
    "warm_start.num_levels=32",
    "es_manager.train.env_groups=4",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.gradient_analysis_every=1",
    "actor_rollout_ref.rollout.rollout_filter_value=1",
    "trainer.total_training_steps=3",
)
LABS: dict[str, tuple[str, ...]] = {
    "healthy": ("cartpole", "total_steps=6144", "tier=deep"),
    "broken": ("cartpole", "total_steps=6144", "fault=entropy_no_grad"),
    "experts": (
        "prismatic",
        "steps=40",
        "batch_size=4",
        "context=24",
        "prompt=8",
        "width=16",
        "num_heads=2",
        "val_size=0",
        "every=1",
    ),
    "analysed": ("sokoban", *TINY_SOKOBAN),
    "tsp": (
        "tsp",
        "steps=2",
        "batch_size=4",
        "num_loc=6",
        "embed_dim=16",
        "num_layers=1",
        "num_heads=2",
        "val_size=0",
    ),
}


def _train(root: Path) -> None:
    from gradiometer.cli.main import run as command

    for name, (lab, *overrides) in LABS.items():
        assert command(["train", lab, f"run={root / name}", *overrides]) == 0
    common = [
        "variance",
        "--ckpt_path",
        str(root / "tsp" / "last.ckpt"),
        "--num_loc",
        "6",
        "--num_instances",
        "8",
    ]
    compared = [
        "--num-replicates",
        "3",
        "--k",
        "3",
        "--compare",
        "none",
        "subloo",
        "--run",
        str(root / "estimators"),
    ]
    assert command([*common, *compared]) == 0


@pytest.fixture(scope="session")
def lab_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short real trainings of every lab, and an estimator study; made once, whichever process of
    the tests comes first."""
    root = tmp_path_factory.getbasetemp().parent / "lab_runs"
    root.mkdir(exist_ok=True)
    with (root.parent / "lab_runs.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not (root.parent / "lab_runs.done").exists():
            shutil.rmtree(root)
            _train(root)
            (root.parent / "lab_runs.done").touch()
    return root


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser that all tests of a process share; each opens pages of its own."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium")
    assert found is not None, "Chromium is missing: apt-get install -y chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Window:
    """A page, what it asked for and what it complained about. It is used again, since Plotly costs
    much in a new one."""

    def __init__(self, context: Any) -> None:
        self.page = page = context.new_page()
        page.asked = []
        page.leave = self.leave
        self.said: list[str] = []
        self.quiet = False  # whether the console's own complaints are expected
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: self.said.append(f"{error}\n{error.stack}"))
        page.on("console", self.hear)
        page.on(
            "dialog",
            lambda dialog: (self.said.append(f"a dialog: {dialog.message}"), dialog.dismiss()),
        )

    def hear(self, message: Any) -> None:
        ours = not message.location["url"].endswith(
            "/favicon.ico"
        )  # asked for by the page that is left for
        if message.type in ("error", "warning") and ours and not self.quiet:
            self.said.append(message.text)

    def open(self, address: str, size: tuple[int, int], colours: str, quiet: bool) -> None:
        self.quiet = quiet
        self.page.asked.clear()
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        self.page.emulate_media(color_scheme=colours)
        self.page.bring_to_front()  # a page behind another is slow
        self.page.goto(address)

    def leave(self) -> None:
        """As if it were closed: nothing of it asks or listens any more. On the same site, so that
        Plotly stays compiled."""
        if self.page.url.startswith("http") and not self.page.url.endswith(".svg"):
            self.page.goto("/".join([*self.page.url.split("/")[:3], "static", "icon.svg"]))


@pytest.fixture(scope="session")
def window(chromium: Any) -> Iterator[Window]:
    """One for all: a second one would put the first into the background, where it is slow."""
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    yield Window(context)
    context.close()


@pytest.fixture
def browse(window: Window) -> Iterator[Callable[..., Any]]:
    """Open a page and wait until it is drawn; at the end nothing may have been complained about."""
    page = window.page

    def start(
        address: str,
        *,
        wait: bool = True,
        complaints: bool = False,
        size: tuple[int, int] = (1280, 900),
        colours: str = "light",
    ) -> Any:
        window.open(address, size, colours, complaints)
        if wait:
            page.wait_for_selector("html[data-ready]", timeout=60_000)
        return page

    yield start
    page.unroute_all(behavior="wait")
    window.leave()
    said, window.said = window.said, []
    assert said == []
