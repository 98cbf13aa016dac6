"""Those who ask the page for what it does not give."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("fastapi")

import httpx

from gradiometer.dashboard import guard, run_index, server
from gradiometer.dashboard.app import create_app
from gradiometer.dashboard.run_index import RunIndex, StillReading
from gradiometer.store.importers import open_log

T = TypeVar("T")


def run_alone(work: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: a browser of another test may have a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def get(app: Any, path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=headers)

    return run_alone(ask())


def test_wrong_tokens_are_slowed_down_and_a_page_that_is_open_is_not(tmp_path: Path) -> None:
    app = create_app(tmp_path, hosts=None, token="a long one")
    right = get(app, "/runs.json?token=a%20long%20one")
    assert right.status_code == 303
    codes = [get(app, f"/runs.json?token=guess{n}").status_code for n in range(15)]
    assert codes == [401] * guard.MOST_TRIES + [429] * (15 - guard.MOST_TRIES)
    assert get(app, "/runs.json", authorization="Bearer a long one").status_code == 429
    cookie = right.headers["set-cookie"].partition(";")[0]
    assert get(app, "/runs.json", cookie=cookie).status_code == 200


def test_wrong_tokens_are_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, now = guard.WrongTokens(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(guard.MOST_TRIES):
        tries.note("a")
    assert tries.too_many("a")
    assert not tries.too_many("b")
    now[0] = guard.TRY_SECONDS + 1
    assert not tries.too_many("a")


def test_a_websocket_is_refused(tmp_path: Path) -> None:
    app = create_app(tmp_path)
    asked = get(app, "/live", upgrade="websocket", connection="upgrade")
    assert asked.status_code == 400
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    run_alone(app({"type": "websocket", "path": "/live", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_request_that_does_not_end_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import uvicorn

    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    app = create_app(tmp_path)
    whole = b"GET /runs.json HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def ask(port: int, *parts: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
        answer = await asyncio.wait_for(reader.read(), 60)  # to its end: somebody closes
        writer.close()
        return answer

    async def run() -> list[bytes]:
        listening = server.bind("127.0.0.1", 0)
        config = uvicorn.Config(
            app, http=server.protocol(), ws="none", log_level="error", timeout_keep_alive=1
        )
        serving = uvicorn.Server(config)
        task = asyncio.create_task(serving.serve(sockets=[listening]))
        port = listening.getsockname()[1]
        asked = (ask(port), ask(port, whole[:20]), ask(port, whole, whole[:20]), ask(port, whole))
        answers = await asyncio.gather(*asked)
        serving.should_exit = True
        await task
        return list(answers)

    nothing, half, more, one = run_alone(run())
    assert (nothing, half) == (b"", b"")
    assert more.count(b"200 OK") == one.count(b"200 OK") == 1


def test_a_log_that_is_read_for_ever_does_not_use_up_those_who_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def slowly(path: Path) -> Any:
        if "slow" in str(path):
            release.wait(60)
        return open_log(path)

    monkeypatch.setattr(run_index, "open_log", slowly)
    monkeypatch.setattr(run_index, "PARSE_SECONDS", 0.2)
    for name in ("slow", "quick"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "progress.csv").write_text("step,loss\n1,2\n2,3\n")
    index = RunIndex(tmp_path)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            with index.open("slow"):
                pass
        except StillReading as problem:
            errors.append(problem)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(errors) == 20
    with index.open("quick") as log:
        assert log.names() == ["loss"]
    states = {card.id: (card.state, card.newest_step) for card in index.cards()}
    assert states == {"slow": ("still", None), "quick": ("still", 2)}
    release.set()
    while True:
        try:
            with index.open("slow") as log:
                assert log.names() == ["loss"]
            break
        except StillReading:
            time.sleep(0.05)
