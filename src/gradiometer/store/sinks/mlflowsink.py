"""MLflow: metrics into the run that the user has active, or into one of ours."""

from __future__ import annotations

import math
import posixpath
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gradiometer.records import Event, Finding, Row, Table
from gradiometer.store.sinks.sink import Backend, Note, Sent, Sink, Start, finding_text, module
from gradiometer.store.strictjson import plain, to_json

__all__ = ["MlflowSink"]

MOST_METRICS = 1000
MOST_PARAMS = 100
LONGEST_NAME = 250
LONGEST_PARAM = 500
LONGEST_TAG = 5000
LARGEST = 1.7976931348623157e308
REFUSED = re.compile(r"[^/\w.\- :]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowSink(Sink):
    """An MLflow run: the user's where one is active when the first step is measured, else one of
    ours.

    `attach=False` always makes one of ours. `logged` says whether what `meter.log` was given is
    sent too: by default only into a new run. Tables are artifacts of JSON, findings tags,
    events an artifact at the end.
    """

    name: ClassVar[str] = "mlflow"
    experiment: str = "gradiometer"
    run_name: str | None = None
    tracking_uri: str | None = None
    attach: bool = True
    logged: bool | None = None

    def check(self, start: Start) -> None:
        """Raise without MLflow."""
        module("mlflow.tracking", "the sink mlflow")

    def users_run(self) -> Any:
        """The active run and where it is kept; MLflow knows it by thread."""
        mlflow = module("mlflow", "the sink mlflow")
        active = mlflow.active_run() if self.attach else None
        return None if active is None else (active.info.run_id, mlflow.get_tracking_uri())

    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        """Attach, or begin a run of ours, which does not become the active one."""
        tracking = module("mlflow.tracking", "the sink mlflow")
        if users_run is not None:
            run_id, uri = users_run
            return MlflowBackend(
                tracking.MlflowClient(uri), run_id, owned=False, logged=bool(self.logged), note=note
            )
        client = tracking.MlflowClient(self.tracking_uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment = (
            client.create_experiment(self.experiment) if known is None else known.experiment_id
        )
        run = client.create_run(experiment, run_name=self.run_name or start.name)
        backend = MlflowBackend(
            client, run.info.run_id, owned=True, logged=self.logged is not False, note=note
        )
        backend.configure(start.config)
        return backend


class MlflowBackend(Backend):
    """An open run, by its id."""

    def __init__(self, client: Any, run_id: str, *, owned: bool, logged: bool, note: Note) -> None:
        self._client, self._run_id, self._owned, self._note = client, run_id, owned, note
        self._entities = module("mlflow.entities", "the sink mlflow")
        self.takes_logged = logged
        self._names: dict[str, str] = {}
        self._events: list[dict[str, Any]] = []
        self._noted: set[str] = set()

    def configure(self, config: Mapping[str, Any]) -> None:
        """The user's settings as params."""
        texts = {key: x if isinstance(x, str) else to_json(x) for key, x in config.items()}
        make = self._entities.Param
        params = [make(self._name(key), text[:LONGEST_PARAM]) for key, text in texts.items()]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MOST_PARAMS])

    def write(self, records: Sequence[Sent]) -> None:
        """Numbers in batches of a thousand, findings as tags, tables as files."""
        rows = (record for record in records if isinstance(record, Row))
        metrics = [metric for row in rows for metric in self._metrics(row)]
        for start in range(0, len(metrics), MOST_METRICS):
            some = metrics[start : start + MOST_METRICS]
            self._client.log_batch(self._run_id, metrics=some, synchronous=True)
        for record in records:
            if isinstance(record, Table):
                content = plain(record.content)
                file = f"gradiometer/{_path(record.name)}/{record.step}.json"
                self._client.log_dict(
                    self._run_id, content if isinstance(content, dict | list) else [content], file
                )
            elif isinstance(record, Finding):
                key = f"gradiometer.{record.id}" + (f".{record.block}" if record.block else "")
                text = finding_text(record)[:LONGEST_TAG]
                self._client.set_tag(self._run_id, self._name(key), text)
            elif isinstance(record, Event):
                self._events.append(plain(record))

    def close(self) -> None:
        """Keep the events; a run of ours is over, the user's goes on."""
        try:
            if self._events:
                self._client.log_dict(self._run_id, self._events, "gradiometer/events.json")
        finally:
            if self._owned:
                failed = any(event["kind"] == "exception" for event in self._events)
                self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")

    def _metrics(self, row: Row) -> list[Any]:
        when = int(1000 * (row.wall_time if math.isfinite(row.wall_time) else time.time()))
        numbers = {self._name(name): self._number(float(x)) for name, x in row.values.items()}
        return [self._entities.Metric(name, x, when, row.step) for name, x in numbers.items()]

    def _number(self, value: float) -> float:
        if math.isinf(value):
            self._once("an Inf is the largest number there, 1.8e308")
            return math.copysign(LARGEST, value)
        return value

    def _name(self, name: str) -> str:
        known = self._names.get(name)
        if known is None:
            known = _path(name)
            while known in self._names.values():
                known += "_"
            self._names[name] = known
            if known != name:
                self._once(f"not every name is allowed there: {name} is called {known}")
        return known

    def _once(self, message: str) -> None:
        about = message.partition(":")[0]
        if about not in self._noted:
            self._noted.add(about)
            self._note(f"mlflow: {message}")


def _path(name: str) -> str:
    """A name as MLflow allows it: letters, digits, and a few signs; a path without gaps."""
    clean = REFUSED.sub("_", name.replace("~", ":"))
    clean = posixpath.normpath("/" + clean).lstrip("/") or "_"
    return clean[:LONGEST_NAME]
