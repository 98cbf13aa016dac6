"""The web application: a page for every tab, its JSON twin, and a stream of what changed.

GET  /<tab>          the page
GET  /<tab>.json     the same as JSON, with the same query (shape.View)
GET  /runs.json      every run of the folder
GET  /table.json     the same with state, outcome and settings: what the first page shows
POST /manage.json    notes on runs and the bin, only with `write` (manage.RunManager)
GET  /live           server-sent events: changed, runs
GET  /openapi.json   all of this, for programs

Errors have one shape: {"error", "message"} (shape.Problem).
"""

from __future__ import annotations

import gzip
import json
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from sse_starlette.sse import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.database_index import DatabaseIndex
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.guard import LOOPBACK, MANAGE, Guard, problem
from gradiometer.dashboard.live import Broadcast
from gradiometer.dashboard.manage import Managed, RunManager
from gradiometer.dashboard.query import AXES, METRIC, parse_query
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.run_table import RunTable, RunTableAnswer
from gradiometer.dashboard.shape import Problem, RunList, View
from gradiometer.dashboard.views import VIEWS
from gradiometer.errors import UnknownName, UsageError
from gradiometer.store.postgres import Address
from gradiometer.version import __version__

__all__ = ["create_app"]

STATIC = Path(__file__).parent / "static"
WORTH_PACKING = 2_000
MOST_BODY = 1 << 18
PATIENCE_SECONDS = 0.3
"""How long a page waits for the doctor; what takes longer comes with a later tick."""
READERS = 8
"""Threads that answer: Python runs one at a time, and each keeps memory of its own."""
CARDS_SECONDS = 1.0
"""How long the list of runs may take; of logs that take longer to read the step comes later."""
PAGE_SECONDS = 3.0
"""What a first page takes at most; imports beside it would only slow it down."""
PARAMETERS: list[dict[str, Any]] = [
    {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": (
            {"type": "array", "items": {"type": "string"}}
            if name in ("run", "open")
            else {"type": kind}
        ),
    }
    for name, kind, description in (
        ("run", "string", "Ids of runs, the one in focus first; without any, the newest."),
        ("x", "string", f"{', '.join(AXES)}, or {METRIC}NAME."),
        ("from", "integer", "The first step."),
        ("to", "integer", "The last step."),
        ("most", "integer", "Points of a line; longer series come in buckets with their extremes."),
        ("open", "string", "Folded sections to send whole (open= is none); without it, all."),
        ("after", "string", "The cursor of an earlier answer: only what is new comes back."),
    )
]
ERROR_CODES = (400, 401, 403, 404, 405, 500)


def create_app(
    root: Path | Address,
    *,
    hosts: Iterable[str] | None = LOOPBACK,
    token: str = "",
    write: bool = False,
    cache: Path | None = None,
) -> FastAPI:
    """The application over the runs of a folder or database; it answers to `hosts` (None is any).
    With `write` the page may name, tag, archive and delete runs; `cache` keeps states of runs."""
    index = DatabaseIndex(root) if isinstance(root, Address) else RunIndex(root)
    diagnoses = Diagnoses(index, PATIENCE_SECONDS)
    broadcast = Broadcast(index, diagnoses)
    table = RunTable(index, write=write, cache=cache)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = READERS
        threading.Thread(target=_warm_up, args=(index, table), daemon=True).start()
        yield
        broadcast.close()
        diagnoses.close()
        table.close()

    app = FastAPI(
        title="Gradiometer",
        version=__version__,
        description="Every view of the dashboard as JSON.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.broadcast = broadcast
    app.state.described = set()
    app.add_middleware(Guard, hosts=hosts, token=token, write=write)
    handlers = {UsageError: _users, HTTPException: _of_http, OSError: _of_machine, Exception: _ours}
    for error, handler in handlers.items():
        app.add_exception_handler(error, handler)
    _add_reading(app, index, diagnoses)
    _add_table(app, table)
    if write:
        _add_managing(app, RunManager(index), table)
    _add_live(app, broadcast)
    _add_files(app)
    return app


def _answers(app: FastAPI, shape: type) -> dict[int | str, dict[str, Any]]:
    """For /openapi.json: what an address answers. Each shape is described once for an application
    and then named: FastAPI builds it anew wherever it is given, which took half a second."""
    described: set[type] = app.state.described

    def told(model: type) -> dict[str, Any]:
        if model not in described:
            described.add(model)
            return {"model": model}
        named = {"$ref": f"#/components/schemas/{model.__name__}"}
        return {"content": {"application/json": {"schema": named}}}

    return {200: told(shape), **{code: told(Problem) for code in ERROR_CODES}}


def _add_reading(app: FastAPI, index: RunIndex, diagnoses: Diagnoses) -> None:
    def view_of(name: str) -> Callable[[Request], Response]:
        def view(request: Request) -> Response:
            query = parse_query(request.query_params.multi_items())
            return _json(request, answer(index, diagnoses, name, query))

        view.__doc__ = f"What the tab {name} shows."
        return view

    for name in VIEWS:
        app.get(
            f"/{name}.json",
            name=name,
            response_class=Response,
            responses=_answers(app, View),
            openapi_extra={"parameters": PARAMETERS},
        )(view_of(name))

    @app.get("/runs.json", response_class=Response, responses=_answers(app, RunList))
    def runs(request: Request) -> Response:
        """Every run of the served folder, the newest first."""
        cards = index.cards(CARDS_SECONDS)
        return _json(request, RunList(root=index.root.name, runs=cards, views=list(VIEWS)))


def _add_table(app: FastAPI, table: RunTable) -> None:
    @app.get(
        "/table.json",
        response_class=Response,
        responses=_answers(app, RunTableAnswer),
        openapi_extra={"parameters": [each for each in PARAMETERS if each["name"] == "after"]},
    )
    def rows(request: Request) -> Response:
        """Every run with its state and outcome, as far as they are known; `unread` are not yet."""
        return _json(request, table.answer(request.query_params.get("after", "")))


def _add_managing(app: FastAPI, manager: RunManager, table: RunTable) -> None:
    @app.post(MANAGE, response_class=Response, responses=_answers(app, Managed))
    async def manage(request: Request) -> Response:
        """Change notes on runs, move runs to the bin, or back."""
        asked = await _asked(request)
        done = await run_in_threadpool(manager.do, asked)
        table.forget()
        return _json(request, done)


async def _asked(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise UsageError(f"a request of more than {MOST_BODY} bytes")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError("the request is not JSON") from None
    if not isinstance(asked, dict):
        raise UsageError("the request must be a JSON object")
    return asked


def _add_live(app: FastAPI, broadcast: Broadcast) -> None:
    @app.get("/live", response_class=EventSourceResponse)
    async def live() -> EventSourceResponse:
        """Server-sent events: `changed` {run, step, state}, and `runs` when runs come or go."""
        headers = {"Cache-Control": "no-store"}
        return EventSourceResponse(broadcast.listen(), ping=15, headers=headers)


def _add_files(app: FastAPI) -> None:
    def page() -> Response:
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    for path in ("/", "/runs", *(f"/{name}" for name in VIEWS)):
        app.get(path, include_in_schema=False)(page)

    @app.get("/plotly.min.js", include_in_schema=False)
    def plotly() -> Response:
        file = resources.files("plotly") / "package_data" / "plotly.min.js"
        # Not packed: on this machine that takes longer than sending it, and the browser keeps it.
        tag = f'"plotly-{metadata.version("plotly")}"'
        headers = {"Cache-Control": "max-age=86400", "ETag": tag}
        return FileResponse(str(file), media_type="text/javascript", headers=headers)

    app.mount("/static", _Static(directory=STATIC))


class _Static(StaticFiles):
    """Our own files, which change with the version: checked each time, sent only if new."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        # A browser asks for the icon at every change of the address.
        icon = str(args[0]).endswith("icon.svg")
        response.headers["Cache-Control"] = "max-age=3600" if icon else "no-cache"
        return response


def _json(request: Request, content: Any) -> Response:
    body = encode(content)
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if len(body) > WORTH_PACKING and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=1, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)


def _users(request: Request, error: Exception) -> Response:
    if isinstance(error, UnknownName):
        return problem(404, f"unknown-{error.kind.split()[0]}", str(error))
    return problem(400, "bad-request", str(error))


def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem(
            404, "unknown-view", f"nothing at {request.url.path}: there are {', '.join(VIEWS)}"
        )
    return problem(error.status_code, "bad-request", str(error.detail))


def _of_machine(request: Request, error: Exception) -> Response:
    return problem(500, "unreadable", str(error))


def _ours(request: Request, error: Exception) -> Response:
    traceback.print_exception(error)
    what = f"a fault of Gradiometer ({type(error).__name__}: {error}); the terminal says more"
    return problem(500, "fault", what)


def _warm_up(index: RunIndex, table: RunTable) -> None:
    """What the first page and the first diagnosis would wait for; scipy's tests, which take most,
    after the first page had its turn: only Compare needs them."""
    with suppress(OSError):
        index.ids()
        table.look()
    time.sleep(PAGE_SECONDS)
    from gradiometer.doctor.rule import rules

    rules()
    import scipy.special

    time.sleep(PAGE_SECONDS)
    import scipy.stats  # noqa: F401
