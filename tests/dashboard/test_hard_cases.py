"""What a hostile folder, a hostile page or an unlucky moment could do to the server, and must
not."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from gradiometer.dashboard import diagnoses as diagnosing
from gradiometer.dashboard import run_index
from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.app import create_app
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.live import Broadcast
from gradiometer.dashboard.query import MOST_RUNS, Query
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.views import VIEWS
from gradiometer.errors import UnknownName
from gradiometer.records import Event, Row, Table
from gradiometer.store import comparison
from gradiometer.store.checksums import cover_all
from gradiometer.store.database import FIRST_STEP, LAST_STEP
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

HOME = "http://127.0.0.1"
EXPERTS = [
    f"grad/expert/{e}/{q}"
    for e in "01"
    for q in ("top_norm", "bottom_norm", "middle_norm", "bottom_rms")
]
NAMES = [
    "reward",
    "entropy",
    "grad/all/norm/raw",
    "grad/all/norm/clipped",
    "grad/actor/norm/raw",
    "grad/critic/norm/raw",
    "grad/layer.0/norm/raw",
    "grad/layer.1/norm/raw",
    "grad/layer.0/health",
    "grad/all/health",
    "grad/all/clip/rate",
    "grad/all/clip/threshold",
    "grad/actor/term/policy/norm",
    "grad/actor/term/value/norm",
    "grad/actor/term/policy~value/cos",
    "grad/all/term/additivity_error",
    "grad_norm/all/policy",
    "grad_norm/bucket_1/policy",
    "grad_norm/all/sample_count",
    "variance/none/grad_norm",
    "grad/expert/1/divergence",
    "grad/expert/0/routing_weight",
    "grad/expert/1/routing_weight",
    "router/all/load/0",
    "meter/micro_batches",
    *EXPERTS,
]


def write(folder: Path, steps: Sequence[int], names: Sequence[str] = NAMES, **facts: Any) -> Path:
    with Writer(folder, facts={"started": "then", **facts}) as writer:
        put(writer, steps, names)
    return folder


def put(
    writer: Writer, steps: Sequence[int], names: Sequence[str] = NAMES, factor: float = 1.0
) -> None:
    for step in steps:
        values = {
            name: factor * (1 + (step * (place + 3)) % 17) for place, name in enumerate(names)
        }
        writer.put(Row(step=step, wall_time=1e9 + step % 1_000_000, values=values))
    writer.flush()


def opened(root: Path, **given: Any) -> TestClient:
    return TestClient(create_app(root, **given), base_url=HOME, raise_server_exceptions=False)


def cards_of(client: TestClient) -> dict[str, Any]:
    response = client.get("/runs.json")
    assert response.status_code == 200, response.text
    return {card["id"]: card for card in response.json()["runs"]}


class Watched:
    """A folder as one page after another sees it, without a server; the doctor and the judge never
    rest."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (diagnosing, import_module("gradiometer.dashboard.views.dynamics")):
            monkeypatch.setattr(module, "REST_PER_SECOND", 0.0)
        monkeypatch.setattr(diagnosing, "REST_SECONDS", 0.0)
        self.index = RunIndex(root)
        self.diagnoses = Diagnoses(self.index)

    def ask(self, view: str, *runs: str, after: str = "", **how: Any) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(
            encode(answer(self.index, self.diagnoses, view, Query(runs=runs, after=after, **how)))
        )
        return told


# ---- A folder that is not as it should be


def test_a_run_whose_facts_are_broken_spoils_no_other(tmp_path: Path) -> None:
    write(tmp_path / "good", range(3))
    for name, text in (("words", "{bad"), ("deep", "[" * 100_000 + "]" * 100_000)):
        write(tmp_path / name, range(3), config={})
        with sqlite3.connect(tmp_path / name / "run.db") as db:
            db.execute("UPDATE run SET value = ? WHERE key = 'config'", (text,))
        db.close()
    with opened(tmp_path) as client:
        cards = cards_of(client)
        assert {id: card["state"] == "unreadable" for id, card in cards.items()} == {
            "good": False,
            "words": True,
            "deep": True,
        }
        assert "its checksum differs" in cards["words"]["problem"]
        assert client.get("/overview.json").json()["runs"] == ["good"]
        assert client.get("/overview.json?run=words").status_code == 400


def test_a_file_that_is_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write(root / "good", range(3))
    write(tmp_path / "outside", range(3))
    (tmp_path / "secret.jsonl").write_text('{"step": 1, "secret": 2}\n')
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "trainer_state.json").write_text(
        '{"log_history": [{"step": 1, "secret": 2}]}'
    )
    for name, link, target in (
        ("linked", "run.db", "outside/run.db"),
        ("alone", "log.jsonl", "secret.jsonl"),
        ("several", "b.jsonl", "secret.jsonl"),
        ("saved", "checkpoint-7", "kept"),
    ):
        (root / name).mkdir()
        (root / name / link).symlink_to(tmp_path / target)
    (root / "several" / "a.jsonl").write_text('{"step": 1, "secret": 3}\n')
    with opened(root) as client:
        cards = cards_of(client)
        away = ("linked", "alone", "several/b.jsonl", "saved")
        assert set(cards) == {"good", "several/a.jsonl", *away}
        for id in away:
            assert cards[id]["state"] == "unreadable"
            assert "link out of the served folder" in cards[id]["problem"]
            response = client.get("/compare.json", params={"run": id, "match": "."})
            assert response.status_code == 400
            assert "link out of the served folder" in response.json()["message"]
        assert client.get("/compare.json", params={"run": "several/a.jsonl"}).status_code == 200


def test_a_checkpoint_that_is_saved_later_is_noticed(tmp_path: Path) -> None:
    def save(step: int) -> None:
        folder = tmp_path / "trl" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        history = [{"step": each, "loss": 1.0} for each in range(1, step + 1)]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))

    save(5)
    with opened(tmp_path) as client:
        (before,) = cards_of(client).values()
        assert before["newest_step"] == 5
        assert before["changed"] > 0
        save(9)
        (after,) = cards_of(client).values()
        assert after["newest_step"] == 9
        line = client.get("/compare.json").json()["charts"][0]["lines"][0]
        assert line["points"]["steps"][-1] == 9


def test_a_name_that_is_no_text_can_be_chosen(tmp_path: Path) -> None:
    write(tmp_path / "plain", range(3))
    os.rename(os.fsencode(tmp_path) + b"/plain", os.fsencode(tmp_path) + b"/caf\xe9")
    with opened(tmp_path) as client:
        (id,) = cards_of(client)
        id.encode()  # a lone surrogate would not pass, nor would it in a URL
        assert client.get("/overview.json", params={"run": id}).json()["runs"] == [id]


def test_more_logs_than_one_looks_at_are_each_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        (tmp_path / f"log-{number}").mkdir()
        (tmp_path / f"log-{number}" / "a.jsonl").write_text('{"step": 1, "reward": 2}\n')
    parsed = []
    real = run_index.open_log
    monkeypatch.setattr(run_index, "open_log", lambda path: parsed.append(path) or real(path))
    watched = Watched(tmp_path, monkeypatch)
    newest = watched.ask("compare")["runs"]
    assert len(set(parsed)) == 1, "to say which run is the newest, none but that one is opened"
    ids = watched.index.ids()
    for _ in range(2):
        watched.ask("compare", *ids)
    assert newest[0] in ids
    assert len(parsed) == len(set(parsed)) == 40
    monkeypatch.setattr(run_index, "MOST_LOGGED", 7)
    watched.index._logs.clear()
    watched.ask("compare", *ids)
    assert len(watched.index._logs) == 7


def test_a_list_of_very_many_logs_comes_at_once_and_is_read_on_later(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"log-{number}").mkdir()
        (tmp_path / f"log-{number}" / "a.jsonl").write_text('{"step": 1, "reward": 2}\n')
    index = RunIndex(tmp_path)
    told = index.cards(patience=0.0)
    assert [(card.newest_step, card.state) for card in told] == [(None, "still")] * 5
    assert all(card.changed > 0 for card in told)
    assert index.read_on(0.0)
    assert sorted(card.newest_step or 0 for card in index.cards(patience=0.0)) == [0, 0, 0, 0, 1]
    diagnoses = Diagnoses(index)
    broadcast = Broadcast(index, diagnoses)
    assert [message["event"] for message in broadcast._changes()] == ["runs"]
    assert not index._owed
    assert [card.newest_step for card in index.cards(patience=0.0)] == [1] * 5
    assert broadcast._changes() == []
    diagnoses.close()


# ---- Numbers at the ends of what there is


@pytest.mark.parametrize(
    "steps", [(LAST_STEP - 2, LAST_STEP), (FIRST_STEP, 0, LAST_STEP), (FIRST_STEP,)]
)
def test_steps_may_be_as_large_as_integers_are(tmp_path: Path, steps: tuple[int, ...]) -> None:
    write(tmp_path / "edge", steps)
    (tmp_path / "log").mkdir()
    rows = "".join(json.dumps({"step": step, "reward": 1.0}) + "\n" for step in steps)
    (tmp_path / "log" / "a.jsonl").write_text(rows)
    with opened(tmp_path) as client:
        for run in ("edge", "log"):
            for name in VIEWS:
                first = client.get(f"/{name}.json", params={"run": run, "most": 2})
                assert first.status_code == 200, first.text
                tick = client.get(
                    f"/{name}.json", params={"run": run, "most": 2, "after": first.json()["cursor"]}
                )
                assert tick.status_code == 200, tick.text
                assert tick.json()["delta"] or not first.json()["cursor"]
                assert not any(chart["lines"] for chart in tick.json()["charts"])


def test_a_cursor_beyond_every_step_gives_the_whole_view(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3))
    with opened(tmp_path) as client:
        for step in (2**63, -(2**63) - 1, LAST_STEP):
            response = client.get("/overview.json", params={"run": "a", "after": f"a.b.c.{step}x9"})
            assert response.status_code == 200, response.text
            assert response.json()["delta"] is False


@pytest.mark.slow
@pytest.mark.parametrize("option", ["at", "histogram"])
@pytest.mark.parametrize("value", ["--5", "-", "9" * 5000, "x", "7"])
def test_a_step_nobody_measured_is_the_readers_mistake(
    tmp_path: Path, option: str, value: str
) -> None:
    names = [f"grad/layer.0/expert/{e}/{t}_rms" for e in "01" for t in ("top", "bottom", "middle")]
    write(tmp_path / "a", range(3), [*EXPERTS, *names])
    with opened(tmp_path) as client:
        response = client.get("/dynamics.json", params={"run": "a", option: value})
        assert response.status_code == (404 if option == "at" else 200), response.text


def test_gradients_that_exploded_have_an_axis(tmp_path: Path) -> None:
    for name in "ab":
        with Writer(tmp_path / name, facts={"started": "then"}) as writer:
            for step in range(4):
                values = dict.fromkeys(EXPERTS, (1.7e308, 5e-324)[step % 2])
                writer.put(Row(step=step, wall_time=float(step), values=values))
    with opened(tmp_path) as client:
        response = client.get("/dynamics.json?run=a&run=b")
        assert response.status_code == 200, response.text
        axis = response.json()["charts"][0]["y"]
        assert 0 < axis["low"] < axis["high"] < math.inf


def test_relative_time_begins_with_the_first_time_there_is(tmp_path: Path) -> None:
    write(tmp_path / "a", range(4), ["reward"])
    with sqlite3.connect(tmp_path / "a" / "run.db") as db:
        db.execute("UPDATE steps SET wall_time = NULL WHERE step < 2")
        cover_all(db)  # as if it had been written so
    db.close()
    with opened(tmp_path) as client:
        line = client.get("/compare.json?run=a&x=relative").json()["charts"][0]["lines"][0]
    assert line["points"]["x"] == ["NaN", "NaN", 0.0, 1.0]


def test_series_whose_names_look_alike_have_charts_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3), ["train/loss", "train.loss", "train-loss", "train loss"])
    with opened(tmp_path) as client:
        charts = client.get("/compare.json", params={"run": "a", "match": "train"}).json()["charts"]
    drawn = [chart for chart in charts if chart["kind"] == "lines"]
    assert len({chart["id"] for chart in drawn}) == 4


# ---- Questions meant to hurt


@pytest.mark.slow
@pytest.mark.parametrize(
    "match",
    [r"(\w+)+!", r"(\w|\w\w)*!", r"(w|w)" * 40 + "!", r".*.*.*.*.*.*.*.*!", r"(\w?){60}\w{60}!"],
)
def test_an_expression_that_would_take_years_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, match: str
) -> None:
    write(tmp_path / "a", range(3), ["w" * 100 + "/a", "reward"])
    with opened(tmp_path) as client:
        with monkeypatch.context() as hasty:
            hasty.setattr(comparison, "MATCH_SECONDS", 0.5)
            response = client.get("/compare.json", params={"run": "a", "match": match})
        assert response.status_code == 400, response.text
        assert "takes too long" in response.json()["message"]
        assert client.get("/compare.json", params={"run": "a", "match": "^rew"}).status_code == 200


@pytest.mark.parametrize(
    "match", ["[", "a{99999999999999999999}", "(" * 900 + ")" * 99, "x" * 5000]
)
def test_what_is_no_expression_is_the_readers_mistake(tmp_path: Path, match: str) -> None:
    write(tmp_path / "a", range(3), ["reward"])
    with opened(tmp_path) as client:
        response = client.get("/compare.json", params={"run": "a", "match": match})
        assert response.status_code == 400
        assert "Traceback" not in response.text


def test_an_expression_finds_the_same_here_and_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [*NAMES, "späte Größe", "line\nbreak", "quote'\"", "\udcff"]
    for match in (
        "norm",
        "grad/(all|actor)/.*norm",
        "^g.*w$",
        r"(norm/)?raw$",
        "ö",
        "\n",
        "'",
        r"\d",
    ):
        comparison._matching.cache_clear()
        here = comparison.matching(match, names)
        monkeypatch.setattr(comparison, "MATCH_WORK", -1)
        comparison._matching.cache_clear()
        assert comparison.matching(match, names) == here
        assert here < set(names)
        monkeypatch.undo()


def test_a_page_of_another_site_gets_nothing_but_a_link_from_it_works(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3))
    with opened(tmp_path) as client:
        for mode in ("no-cors", "cors", "websocket"):
            refused = client.get(
                "/overview.json", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
            )
            assert refused.status_code == 403
            assert refused.json()["error"] == "forbidden"
        for site, mode in (
            ("cross-site", "navigate"),
            ("same-origin", "cors"),
            ("none", "navigate"),
        ):
            headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
            assert client.get("/overview", headers=headers).status_code == 200


def test_whichever_loopback_address_is_served_answers_to_its_own_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import uvicorn

    from gradiometer.dashboard import server

    served: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: served.append(self.config.app))
    write(tmp_path / "a", range(3))
    server.serve(tmp_path, host="127.0.0.5", port=0, say=lambda line: None)
    with TestClient(served[0], base_url="http://127.0.0.5:8765") as client:
        assert client.get("/runs.json").status_code == 200
        assert client.get("/runs.json", headers={"Host": "evil.example"}).status_code == 403


# ---- Unlucky moments


def test_a_diagnosis_that_comes_at_the_last_moment_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", range(3))
    diagnoses = Diagnoses(RunIndex(tmp_path), patience=0.01)

    class JustTooLate:
        def result(self, patience: float) -> Any:
            diagnoses._look("a", diagnoses._index.signature("a"))
            raise TooLate

    monkeypatch.setattr(diagnoses._workers, "submit", lambda *work: JustTooLate())
    assert diagnoses.latest("a").diagnosis.verdict != diagnosing.READING
    assert diagnoses.late() == set()
    diagnoses.close()


def test_as_many_diagnoses_are_kept_as_can_be_asked_for() -> None:
    assert diagnosing.MOST >= MOST_RUNS


def test_listeners_hear_on_when_a_run_goes_in_the_middle_of_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a", range(3))
    write(tmp_path / "b", range(3))
    index = RunIndex(tmp_path)
    diagnoses = Diagnoses(index)
    trouble: Iterator[Exception] = iter(
        [UnknownName("run", "a", ()), RuntimeError("boom"), RuntimeError("boom")]
    )
    card = index.card

    def unlucky(id: str) -> Any:
        for error in trouble:
            raise error
        return card(id)

    async def listen() -> list[dict[str, str]]:
        broadcast = Broadcast(index, diagnoses, every=0.01)
        stream = broadcast.listen()
        heard = [await anext(stream)]
        while broadcast._seen is None:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(index, "card", unlucky)
        for number in range(4):
            with Writer(tmp_path / "b", resume=2 + number) as writer:
                put(writer, [3 + number])
            for _ in range(20):
                await asyncio.sleep(0.01)
        heard.append(await asyncio.wait_for(anext(stream), 20))
        broadcast.close()
        await stream.aclose()  # type: ignore[attr-defined]
        return heard

    with ThreadPoolExecutor(1) as aside:  # Playwright keeps a loop of its own on this thread
        heard = aside.submit(lambda: asyncio.run(listen())).result()
    diagnoses.close()
    assert [message["event"] for message in heard] == ["hello", "changed"]
    assert next(trouble, None) is None
    assert capsys.readouterr().err.count("boom") <= 2, "a fault that stays is told once"


def test_a_log_that_is_written_anew_or_taken_back_is_sent_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "r" / "a.jsonl"
    log.parent.mkdir()

    def rows(*steps: int, value: float = 1.0) -> str:
        return "".join(json.dumps({"step": step, "reward": value}) + "\n" for step in steps)

    log.write_text(rows(*range(9)))
    watched = Watched(tmp_path, monkeypatch)
    cursor = watched.ask("overview", "r")["cursor"]
    log.write_text(rows(0, 1, 2, value=7.0))
    anew = watched.ask("overview", "r", after=cursor)
    assert anew["delta"] is False
    assert anew["charts"][0]["lines"][0]["points"]["values"] == [7.0] * 3
    log.write_text(rows(0, 1, 2, value=7.0) + rows(1, 2, 3, value=8.0))
    back = watched.ask("overview", "r", after=anew["cursor"])
    assert back["delta"] is False
    assert back["charts"][0]["lines"][0]["points"]["values"] == [7.0, 8.0, 8.0, 8.0]
    log.write_text(rows(0, 1, 2, value=7.0) + rows(1, 2, 3, 4, value=8.0))
    on = watched.ask("overview", "r", after=back["cursor"])
    assert on["delta"] is True
    assert on["charts"][0]["lines"][0]["points"]["steps"] == [4]


def test_a_cursor_answers_only_the_question_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", range(9))
    watched = Watched(tmp_path, monkeypatch)
    cursor = watched.ask("overview", "a", first=4)["cursor"]
    assert watched.ask("overview", "a", first=4, after=cursor)["delta"] is True
    for other in (
        {},
        {"first": 2},
        {"first": 4, "x": "wall"},
        {"first": 4, "most": 5},
        {"first": 4, "last": 6},
    ):
        assert watched.ask("overview", "a", after=cursor, **other)["delta"] is False


def test_a_run_may_be_replaced_or_removed_while_it_is_served(tmp_path: Path) -> None:
    write(tmp_path / "a", range(9))
    write(tmp_path / "b", range(9))
    with opened(tmp_path) as client:
        cursors = {name: client.get(f"/{name}.json?run=a").json()["cursor"] for name in VIEWS}
        with Writer(tmp_path / "a", facts={"started": "now"}, overwrite=True) as writer:
            put(writer, range(20), factor=3.0)
        for name in VIEWS:
            told = client.get(f"/{name}.json", params={"run": "a", "after": cursors[name]})
            assert told.status_code == 200
            assert told.json()["delta"] is False
        (tmp_path / "a" / "run.db").unlink()
        for name in VIEWS:
            assert client.get(f"/{name}.json?run=a").status_code in (400, 404)
            assert client.get(f"/{name}.json?run=b").status_code == 200
        assert "b" in cards_of(client)


# ---- Ticks put together are the whole view, on every tab


def joined(view: dict[str, Any], tick: dict[str, Any]) -> dict[str, Any]:
    """As the page does it."""
    if not tick["delta"]:
        return tick
    news = {chart["id"]: chart for chart in tick["charts"]}
    charts = []
    for chart in view["charts"]:
        new = news.pop(chart["id"], None)
        if new is None:
            charts.append(chart)
            continue
        lines = {_key(line): line for line in chart["lines"]}
        assert len(lines) == len(chart["lines"]), f"two lines of {chart['id']} cannot be told apart"
        for line in new["lines"]:
            had, more = lines[_key(line)]["points"], line["points"]
            assert not had["steps"] or more["steps"][0] > had["steps"][-1]
            sums = {part: (had[part] or []) + (more[part] or []) for part in had}
            points = {
                part: whole if had[part] is not None or more[part] is not None else None
                for part, whole in sums.items()
            }
            lines[_key(line)] = {**line, "points": points}
        charts.append({**new, "lines": list(lines.values()), "info": chart["info"]})
    assert not news, "news of charts that were never sent"
    return {
        **view,
        "charts": charts,
        "cursor": tick["cursor"],
        "bare": tick["bare"],
        **{part: tick[part] for part in tick["parts"]},
    }


def _key(line: dict[str, Any]) -> tuple[str, ...]:
    return line["run"], line["name"], line["role"], line["label"]


def seen(view: dict[str, Any]) -> dict[str, Any]:
    """Without what only says how it travelled."""
    verdicts = [{**verdict, "step": None} for verdict in view["verdicts"]]
    return {part: view[part] for part in view if part not in ("delta", "parts", "cursor")} | {
        "verdicts": verdicts
    }


def check_ticks(
    watched: Watched, runs: Sequence[str], grow: Iterator[None], **how: Any
) -> dict[str, int]:
    """Grow and ask, again and again; how many answers of each tab were ticks."""
    have: dict[str, dict[str, Any]] = {}
    ticks = dict.fromkeys(VIEWS, 0)
    for _ in grow:
        for name in VIEWS:
            told = watched.ask(
                name, *runs, after=have.get(name, {}).get("cursor", ""), most=20_000, **how
            )
            ticks[name] += told["delta"]
            have[name] = joined(have[name], told) if name in have else told
            assert seen(have[name]) == seen(watched.ask(name, *runs, most=20_000, **how)), name
    return ticks


@pytest.mark.slow
@pytest.mark.parametrize("x", ["step", "relative", "metric:reward"])
def test_ticks_are_the_whole_view_of_a_run_with_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, x: str
) -> None:
    watched = Watched(tmp_path, monkeypatch)

    def grow() -> Iterator[None]:
        writers = [
            Writer(tmp_path / name, facts={"started": name, "config": {"seed": name}})
            for name in "ab"
        ]
        for part in range(5):
            for number, writer in enumerate(writers):
                later = range(10 * part, 10 * part + 10, 1 + number)
                put(writer, later, NAMES if part else NAMES[:-4], factor=1.0 + number)
                writer.put(
                    Row(
                        step=10 * part + 9,
                        wall_time=1e9,
                        values={"entropy": (math.nan, math.inf, 1.0)[part % 3]},
                    )
                )
                writer.put(Event(step=10 * part, kind="note", message=f"part {part}", detail={}))
                writer.put(
                    Table(
                        step=10 * part,
                        name="terms",
                        content={"policy": {"actor": "path"}, "aux": {"actor": "none"}},
                    )
                )
                writer.flush()
            yield
        for writer in writers:
            writer.close()

    ticks = check_ticks(watched, ["a", "b"], grow(), x=x, options={"match": (".",)})
    assert all(ticks[name] for name in ("overview", "gradients", "dynamics", "compare")), ticks


@pytest.mark.parametrize("name", ["healthy", "broken", "experts", "analysed", "estimators"])
def test_ticks_are_the_whole_view_of_a_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab_runs: Path, name: str
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    ticks = check_ticks(watched, ["again"], replayed(lab_runs / name, tmp_path / "again", parts=4))
    assert sum(ticks.values()) >= len(VIEWS), ticks


def replayed(source: Path, folder: Path, parts: int) -> Iterator[None]:
    """Everything of a run, written once more part by part."""
    with load(source) as run:
        values: dict[int, dict[str, float]] = {}
        for name in run.names():
            for step, value in zip(*(column.tolist() for column in run.series(name)), strict=True):
                values.setdefault(step, {})[name] = value
        where = run.steps()
        times = dict(zip(where["step"].tolist(), where["wall_time"].tolist(), strict=True))
        records: list[Any] = [
            Row(step=step, wall_time=times[step], values=own) for step, own in values.items()
        ]
        records += run.events()
        records += [table for name in run.table_names() for table in run.tables(name)]
        records += [
            run.vector(name, step)
            for name in run.vector_names()
            for step in run.vector_steps(name).tolist()
        ]
        facts = run.facts
    records.sort(key=lambda record: record.step)
    with Writer(
        folder, facts={key: value for key, value in facts.items() if key != "schema_version"}
    ) as writer:
        for part in range(parts):
            for record in records[
                len(records) * part // parts : len(records) * (part + 1) // parts
            ]:
                writer.put(record)
            writer.flush()
            yield
