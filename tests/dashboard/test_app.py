"""The application over real runs: every view validates against its schema, and nobody gets more
than he may."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from gradiometer.dashboard.app import STATIC, create_app
from gradiometer.dashboard.shape import Problem, RunList, View
from gradiometer.dashboard.views import VIEWS
from gradiometer.records import Row
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

HOME = "http://127.0.0.1"


def write(folder: Path, steps: range, **extra: Any) -> None:
    with Writer(
        folder,
        facts={"started": "2026-01-01", "config": {"lr": 0.1, "note": "<script>alert(1)</script>"}},
        **extra,
    ) as writer:
        for step in steps:
            values = {
                "reward": step / 10,
                "grad/all/norm/raw": math.nan if step == 3 else 1.0 + step,
                "entropy": 0.5,
            }
            writer.put(Row(step=step, wall_time=1e9 + step, values=values))


def fill(place: Path) -> Path:
    root = place / "runs"
    write(root / "a", range(20))
    write(root / "deep" / "b", range(10))
    write(root / "<script>alert(1)</script>", range(5))
    (place / "secret.txt").write_text("secret")
    write(place / "outside", range(3))
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that leave it as it is."""
    return fill(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(create_app(folder), base_url=HOME, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """For tests that add to it."""
    return fill(tmp_path)


def test_the_runs_of_the_folder_are_listed_and_no_other(client: TestClient) -> None:
    told = TypeAdapter(RunList).validate_python(client.get("/runs.json").json())
    assert {card.id for card in told.runs} == {"a", "deep/b", "<script>alert(1)</script>"}
    assert {card.newest_step for card in told.runs} == {19, 9, 4}
    assert len({card.colour for card in told.runs}) == 3
    assert told.views == list(VIEWS)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("query", ["", "?run=a", "?run=a&run=deep/b&x=relative&from=2&to=9"])
def test_every_view_has_the_documented_shape(client: TestClient, name: str, query: str) -> None:
    response = client.get(f"/{name}.json{query}")
    assert response.status_code == 200, response.text
    view = TypeAdapter(View).validate_python(response.json())
    assert view.view == name
    ids = [chart.id for chart in view.charts]
    assert len(ids) == len(set(ids))


def test_openapi_describes_every_view_and_the_error(client: TestClient) -> None:
    told = client.get("/openapi.json").json()
    assert {f"/{name}.json" for name in VIEWS} | {"/runs.json", "/table.json", "/live"} == set(
        told["paths"]
    )
    assert {"View", "Chart", "Problem", "RunCard"} <= set(told["components"]["schemas"])
    parameters = {item["name"] for item in told["paths"]["/overview.json"]["get"]["parameters"]}
    assert {"run", "x", "from", "to", "most", "after"} <= parameters


@pytest.mark.parametrize("name", ["", *VIEWS])
def test_every_tab_is_a_page(client: TestClient, name: str) -> None:
    response = client.get(f"/{name}")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/overview.json?run=zzz", 404, "unknown-run"),
        ("/overview.json?run=..%2Foutside", 404, "unknown-run"),
        ("/overview.json?run=%2Fetc", 404, "unknown-run"),
        ("/overview.json?run=a%2F..%2Fa", 404, "unknown-run"),
        ("/nothing.json", 404, "unknown-view"),
        ("/nothing", 404, "unknown-view"),
        ("/overview.json?from=x", 400, "bad-request"),
        ("/overview.json?x=colour", 400, "bad-request"),
        ("/overview.json?most=0", 400, "bad-request"),
        ("/overview.json?to=99999999999999999999", 400, "bad-request"),
        ("/static/../app.py", 404, "unknown-view"),
        ("/static/%2e%2e/app.py", 404, "unknown-view"),
        ("/static/..%2f..%2f..%2f..%2fsecret.txt", 404, "unknown-view"),
    ],
)
def test_a_wrong_question_gets_one_clear_answer(
    client: TestClient, path: str, status: int, error: str
) -> None:
    response = client.get(path)
    assert response.status_code == status, response.text
    told = TypeAdapter(Problem).validate_python(response.json())
    assert set(response.json()) == {"error", "message"}
    assert told.error == error
    assert "Traceback" not in told.message


def test_a_cursor_of_somebody_else_gives_the_whole_view(client: TestClient) -> None:
    for cursor in ("x", "a.b.c.d", "1.2.3.99999999999999999999x3", "...", "a.b.c.5x999999"):
        told = client.get("/compare.json", params={"run": "a", "after": cursor})
        assert told.status_code == 200
        assert told.json()["delta"] is False


def test_only_get_is_allowed(client: TestClient, folder: Path) -> None:
    before = sorted(path.read_bytes() for path in folder.rglob("run.db"))
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        for path in ("/runs.json", "/overview.json", "/", "/live", "/static/index.html"):
            response = client.request(method, path)
            assert response.status_code == 405
            assert response.json()["error"] == "bad-request"
    assert sorted(path.read_bytes() for path in folder.rglob("run.db")) == before


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "192.168.1.5", "[::2]:80"],
)
def test_a_rebound_name_gets_nothing(client: TestClient, host: str) -> None:
    for path in ("/", "/runs.json", "/static/index.html", "/openapi.json", "/live"):
        response = client.get(path, headers={"Host": host})
        assert response.status_code == 403
        assert response.json()["error"] == "forbidden"


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8765", "LOCALHOST:1", "[::1]:8765", "::1"]
)
def test_the_names_of_this_machine_are_served(client: TestClient, host: str) -> None:
    assert client.get("/runs.json", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/runs.json", "/static/index.html", "/plotly.min.js", "/nothing", "/overview.json?run=z"],
)
def test_the_browser_is_told_to_run_no_script_but_ours(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_has_no_inline_script_and_asks_nobody_else() -> None:
    for file in STATIC.rglob("*"):
        if file.suffix in (".html", ".js", ".css"):
            text = file.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
            for word in (
                "http://",
                "https://",
                "innerHTML",
                "insertAdjacentHTML",
                "document.write",
                "new Function",
            ):
                assert word not in text, f"{file.name} has {word}"
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert "onclick" not in page
    for script in page.split("<script")[1:]:
        assert "src=" in script.partition(">")[0], "an inline script"


def test_a_strange_name_is_only_ever_json(client: TestClient) -> None:
    response = client.get("/overview.json", params={"run": "<script>alert(1)</script>"})
    assert response.headers["content-type"] == "application/json"
    assert response.json()["runs"] == ["<script>alert(1)</script>"]
    error = client.get("/overview.json", params={"run": "<img src=x onerror=alert(1)>"})
    assert error.headers["content-type"] == "application/json"


def test_a_token_is_asked_for_and_then_kept_in_a_cookie(folder: Path) -> None:
    token = "correct horse"
    with TestClient(create_app(folder, hosts=None, token=token), base_url="http://box:9") as client:
        for path in (
            "/",
            "/runs.json",
            "/static/index.html",
            "/live",
            "/overview.json?token=wrong",
        ):
            refused = client.get(path)
            assert refused.status_code == 401
            assert refused.json()["error"] == "forbidden"
        assert (
            client.get("/runs.json", headers={"Authorization": f"Bearer {token}"}).status_code
            == 200
        )
        assert (
            client.get("/runs.json", headers={"Authorization": "Bearer wrong"}).status_code == 401
        )
        first = client.get("/compare", params={"token": token, "run": "a"}, follow_redirects=False)
        assert first.status_code == 303
        assert first.headers["location"] == "/compare?run=a"
        cookie = first.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert token not in cookie
        assert client.get("/runs.json").status_code == 200
    with TestClient(create_app(folder, hosts=None, token=token), base_url="http://box:9") as client:
        away = client.get(
            "http://box:9//evil.example/x", params={"token": token}, follow_redirects=False
        )
        assert away.headers["location"] == "/evil.example/x"


def test_who_answers_to_every_name_needs_a_token(folder: Path) -> None:
    with (
        pytest.raises(ValueError, match="needs a token"),
        TestClient(create_app(folder, hosts=None)),
    ):
        pass


def test_long_answers_travel_packed(client: TestClient) -> None:
    with client.stream(
        "GET", "/overview.json?run=a", headers={"Accept-Encoding": "gzip"}
    ) as response:
        raw = b"".join(response.iter_raw())
        assert response.headers["content-encoding"] == "gzip"
    plain = client.get("/overview.json?run=a", headers={"Accept-Encoding": "identity"})
    assert json.loads(gzip.decompress(raw)) == plain.json()
    assert len(raw) < len(plain.content)


def test_plotly_comes_from_the_installed_package(client: TestClient) -> None:
    import plotly

    wanted = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes()
    assert client.get("/plotly.min.js").content == wanted


def test_a_run_that_cannot_be_read_spoils_no_other(own: Path) -> None:
    (own / "broken").mkdir()
    (own / "broken" / "run.db").write_bytes(
        b"no database at all, but long enough to have had a header " * 4
    )
    with TestClient(create_app(own), base_url=HOME) as client:
        cards = {card["id"]: card for card in client.get("/runs.json").json()["runs"]}
        assert cards["broken"]["state"] == "unreadable"
        assert "no SQLite database" in cards["broken"]["problem"]
        assert cards["a"]["state"] != "unreadable"
        assert client.get("/overview.json").json()["runs"] != ["broken"], (
            "the newest run that can be read"
        )
        response = client.get("/overview.json?run=broken")
        assert response.status_code == 400
        assert "no SQLite database" in response.json()["message"]
        assert client.get("/overview.json?run=a").status_code == 200


def test_a_folder_without_runs_says_what_to_do(tmp_path: Path) -> None:
    with TestClient(create_app(tmp_path), base_url=HOME) as client:
        for name in VIEWS:
            told = client.get(f"/{name}.json").json()
            assert "gradiometer demo" in told["empty"]["code"]


def test_one_run_can_be_served_alone(folder: Path) -> None:
    for path in (folder / "a", folder / "a" / "run.db"):
        with TestClient(create_app(path), base_url=HOME) as client:
            assert [card["id"] for card in client.get("/runs.json").json()["runs"]] == ["a"]
            assert client.get("/overview.json?run=a").status_code == 200
            assert client.get("/overview.json?run=deep/b").status_code == 404


def test_a_link_out_of_the_folder_is_not_followed(own: Path) -> None:
    (own / "link").symlink_to(own.parent / "outside")
    with TestClient(create_app(own), base_url=HOME) as client:
        assert "link" not in {card["id"] for card in client.get("/runs.json").json()["runs"]}
        assert client.get("/overview.json?run=link").status_code == 404


def test_a_fault_of_ours_is_said_in_the_same_shape(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: object) -> View:
        raise RuntimeError("boom")

    monkeypatch.setitem(VIEWS, "overview", broken)
    response = client.get("/overview.json?run=a")
    assert response.status_code == 500
    assert response.json()["error"] == "fault"
    assert "boom" in response.json()["message"]


def test_numbers_are_those_of_the_database(client: TestClient, folder: Path) -> None:
    view = client.get("/compare.json", params={"run": "a", "metric": "grad/all/norm/raw"}).json()
    lines = [
        line
        for chart in view["charts"]
        for line in chart["lines"]
        if line["name"] == "grad/all/norm/raw"
    ]
    assert lines
    with load(folder / "a") as run:
        steps, values = run.series("grad/all/norm/raw")
    assert lines[0]["points"]["steps"] == steps.tolist()
    assert lines[0]["points"]["values"] == [
        "NaN" if math.isnan(value) else value for value in values.tolist()
    ]
    assert lines[0]["points"]["nans"] == [3]
