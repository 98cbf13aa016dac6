"""Where a run goes besides its own file: `gm.watch(..., sinks=["tensorboard",
gm.sinks.wandb(project="ppo")])`.

A sink is named, or made here with settings. Each has a thread of its own, so none holds up the
training, and a run of the user's own that is already open is joined instead of doubled.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gradiometer.errors import UnknownName, UsageError
from gradiometer.store.sinks.dynamicssink import DynamicsSink
from gradiometer.store.sinks.fanout import Fanout
from gradiometer.store.sinks.jsonlsink import JsonlSink
from gradiometer.store.sinks.mlflowsink import MlflowSink
from gradiometer.store.sinks.postgressink import PostgresSink
from gradiometer.store.sinks.sink import Backend, Sink, Start
from gradiometer.store.sinks.tensorboardsink import TensorboardSink
from gradiometer.store.sinks.trackiosink import TrackioSink
from gradiometer.store.sinks.wandbsink import WandbSink

jsonl = JsonlSink
tensorboard = TensorboardSink
wandb = WandbSink
mlflow = MlflowSink
trackio = TrackioSink
dynamics = DynamicsSink
postgres = PostgresSink

KNOWN: dict[str, type[Sink]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Sink) and getattr(kind, "name", "") == name
}
"""The sinks above, by name."""
__all__ = ["Backend", "Fanout", "Sink", "Start", "chosen", *KNOWN]

sinks = sys.modules[__name__]  # what `gradiometer.sinks` shows


def chosen(given: Sequence[str | Sink] | str | Sink, start: Start) -> tuple[Sink, ...]:
    """The sinks that were asked for; what is wrong with one is said before a folder is made."""
    listed = [given] if isinstance(given, str | Sink) else list(given)
    found = tuple(_sink(one) for one in listed)
    for place, sink in enumerate(found):
        if sink in found[:place]:
            raise UsageError(
                f"the sink {sink.name} is given twice with the same settings; once is enough"
            )
        sink.check(start)
    return found


def _sink(given: str | Sink) -> Sink:
    if isinstance(given, Sink):
        return given
    if not isinstance(given, str):
        raise UsageError(
            f"a sink is a name ({', '.join(KNOWN)}) or made by gm.sinks; found {given!r:.60}"
        )
    if given not in KNOWN:
        raise UnknownName("sink", given, KNOWN, hint=f"(there are: {', '.join(KNOWN)})")
    return KNOWN[given]()
