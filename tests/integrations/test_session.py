"""What callbacks share: one run for a model, closed however its training ends."""

from __future__ import annotations

import gc
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradiometer as gm
from gradiometer.capture import hooks
from gradiometer.errors import GradiometerWarning, RunLocked
from gradiometer.integrations.session import _OPEN, Session


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()


def session(run: Any, **options: Any) -> Session:
    return Session(run, budget=None, **options)


def test_starting_twice_is_one_meter_and_starting_again_goes_on(tmp_path: Path) -> None:
    (model, optimizer), one = parts(), session(tmp_path / "run", overwrite=True)
    meter = one.start(model, optimizer)
    assert one.start(model, optimizer) is meter
    train(model, optimizer)
    one.close()
    one.close()
    one.log({"late": 1.0})
    assert one.start(model, optimizer) is not meter
    train(model, optimizer)
    one.log({"loss": 0.5})
    one.close()
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert run.series("loss")[0].tolist() == [5]
    assert "late" not in run.names()


def test_the_users_wishes_win_over_the_trainers(tmp_path: Path) -> None:
    one = session(tmp_path / "run", tier="light", config={"lr": 1})
    one.start(*parts(), config={"lr": 2, "gamma": 3}, tier="deep", seed=4)
    one.close()
    facts = gm.load(tmp_path / "run").facts
    assert (facts["config"], facts["seed"], facts["meter"]["tier"]) == (
        {"lr": 1, "gamma": 3},
        4,
        "light",
    )


def test_what_was_put_in_is_taken_out_however_the_training_ends(tmp_path: Path) -> None:
    taken: list[str] = []
    for name, error in (("ended", None), ("failed", ValueError("no"))):
        one = session(tmp_path / name)
        one.start(*parts())
        one.at_end(lambda name=name: taken.append(name))  # type: ignore[misc]
        one.close(error)
    lost = session(tmp_path / "lost")
    lost.start(*parts())
    lost.at_end(lambda: taken.append("lost"))
    del lost
    gc.collect()
    assert taken == ["ended", "failed", "lost"]
    assert [event.message for event in gm.load(tmp_path / "failed").events("exception")] == [
        "ValueError: no"
    ]
    assert hooks._clip_listeners == []
    assert not _OPEN


def test_a_meter_that_the_user_closes_is_closed_in_silence(tmp_path: Path) -> None:
    one = session(tmp_path / "run")
    with one.start(*parts()):
        pass
    assert one.open is None
    one.log({"late": 1.0})
    one.close(ValueError("too late"))
    assert not gm.load(tmp_path / "run").events()
    assert not _OPEN


def test_a_training_of_another_thread_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    one = session(tmp_path / "run")
    one.start(*parts())
    seen: list[BaseException] = []

    def other() -> None:
        try:
            session(tmp_path / "run", resume=0).start(*parts())
        except RunLocked as error:
            seen.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(seen) == 1
    assert one.open is not None
    one.close()


def test_trouble_in_a_report_is_told_once_and_stays_ours(tmp_path: Path) -> None:
    model, optimizer = parts()
    one = session(tmp_path / "run")
    one.start(model, optimizer)
    with pytest.warns(GradiometerWarning, match="stopped measuring"):
        one.tell(lambda _: 1 / 0)
    train(model, optimizer)
    one.close()
    run = gm.load(tmp_path / "run")
    assert len(run.events("fault")) == 1
    assert "grad/all/norm/raw" not in run.names()


def test_a_pickled_session_holds_its_wishes_only(tmp_path: Path) -> None:
    one = session(tmp_path / "run", tier="light")
    one.start(*parts())
    copy = pickle.loads(pickle.dumps(one))
    assert copy.options == one.options
    assert copy.meter is None
    one.close()
