"""Terms that are read off the graph, in trainings of ten styles, against gradients taken by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm

PROGRAMS = [
    "functions",
    "classes",
    "losses_in_a_dict",
    "loop_over_a_list",
    "helper_in_another_file",
    "per_token",
    "added_in_place",
    "stacked",
    "two_optimizers",
    "lightning_module",
]


class Oracle:
    """The norm of each term's gradient, over all parameters, of the last step."""

    def __init__(self) -> None:
        self.norms: dict[str, float] = {}

    def __call__(self, model: nn.Module, **terms: Tensor) -> None:
        parameters = list(model.parameters())
        for name, term in terms.items():
            found = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            squares = [float(g.double().square().sum()) for g in found if g is not None]
            self.norms[name] = sum(squares) ** 0.5


@pytest.mark.filterwarnings("ignore:.*isinstance\\(treespec, LeafSpec\\)")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_terms_of_an_unchanged_program_are_found_with_their_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    program: Any = importlib.import_module(f"programs.{name}")
    meters: list[gm.Meter] = []
    oracle = Oracle()

    def watch(*given: Any) -> gm.Meter:
        meters.append(gm.watch(*given, run=None, budget=None))
        return meters[0]

    torch.manual_seed(0)
    program.train(watch, oracle)
    values = meters[0]._values
    found = {
        key.split("/")[3]: value
        for key, value in values.items()
        if key.startswith("grad/all/term/") and key.endswith("/norm")
    }
    assert sorted(found.values()) == pytest.approx(sorted(oracle.norms.values()), rel=1e-4)
    assert set(found) == set(program.NAMES.values())
    for hand, theirs in program.NAMES.items():
        assert found[theirs] == pytest.approx(oracle.norms[hand], rel=1e-4), theirs
    assert values["grad/all/term/additivity_error"] < 1e-5
