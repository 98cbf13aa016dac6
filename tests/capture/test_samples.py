"""`meter.log_samples`: which texts are kept, and how many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gradiometer as gm
from gradiometer.capture import samples
from gradiometer.capture.samples import MOST_CHARACTERS, MOST_OF_STEP
from gradiometer.errors import GradiometerWarning
from gradiometer.store.samples import read_samples


def log(folder: Path, *given: Any, **more: Any) -> Any:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=folder) as meter:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        meter.log_samples(*given, **more)
    return gm.load(folder)


def test_texts_are_kept_with_reward_and_credit_at_the_step(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi <b>"}]
    rewards, credit = torch.tensor([1.0, float("nan")]), [0.5, -0.5]
    run = log(tmp_path / "r", ["a", chat], ["yes", "no"], rewards, credit=credit, step=7)
    first, second = read_samples(run, 7)
    assert (first.prompt, first.completion, first.reward, first.credit) == ("a", "yes", 1.0, 0.5)
    assert (second.prompt, second.reward) == ("user: hi <b>", None)
    assert read_samples(run, 6) == []


def test_of_many_the_extremes_are_kept_and_long_texts_are_cut(tmp_path: Path) -> None:
    texts = ["x" * 5_000] * 200
    found = read_samples(log(tmp_path / "r", texts, texts, list(range(200))))
    assert len(found) == MOST_OF_STEP
    rewards = {each.reward for each in found}
    assert {0.0, 1.0, 198.0, 199.0} <= rewards
    assert {len(each.completion) for each in found} == {MOST_CHARACTERS}


def test_a_run_has_an_end_of_its_texts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_IN_RUN", 10)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "r") as meter:
        for step in range(3):
            meter.log_samples(["12345"], ["67890"], [1.0], step=step)
    run = gm.load(tmp_path / "r")
    assert [each.step for each in read_samples(run)] == [0]
    assert len(run.events("samples-full")) == 1


def test_lists_that_do_not_fit_are_refused_in_a_sentence_and_the_training_goes_on(
    tmp_path: Path,
) -> None:
    with pytest.warns(GradiometerWarning, match="2 rewards and 1 completions"):
        run = log(tmp_path / "r", ["a"], ["b"], [1.0, 2.0])
    assert read_samples(run) == []
