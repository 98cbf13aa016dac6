"""examples/11_cleanrl.py, a script of CleanRL's shape: the same weights as without Gradiometer, and
its terms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gradiometer as gm

EXAMPLE = Path(__file__).parents[2] / "examples" / "11_cleanrl.py"


class Absent:
    """What the script does without Gradiometer: the loss is written out, and nothing is kept."""

    @contextmanager
    def terms(self, policy: Tensor, entropy: Tensor, value: Tensor) -> Iterator[Tensor]:
        yield policy + entropy + value

    def log(self, *_: Any) -> None:
        pass

    def at(self, **_: Any) -> None:
        pass

    def __enter__(self) -> Absent:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def script_run(watch: Any, **changed: Any) -> dict[str, Any]:
    """The script up to where it reads its run, with `gm.watch` as given and shorter."""
    source = EXAMPLE.read_text(encoding="utf-8").partition("\nrun = gm.load")[0]
    source = source.replace("import gradiometer as gm\n", "").replace(
        "total_timesteps: int = 8192", "total_timesteps: int = 1536"
    )
    names: dict[str, Any] = {"__name__": "cleanrl", "gm": SimpleNamespace(watch=watch)}
    exec(compile(source, str(EXAMPLE), "exec"), names)
    return names


def watched(*args: Any, **options: Any) -> Any:
    return gm.watch(*args, **{**options, "budget": None, "tier": "deep"})


@pytest.mark.slow
def test_the_script_has_the_same_weights_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "cleanrl", SimpleNamespace()
    )  # dataclasses look their module up
    bare = script_run(lambda *_, **__: Absent())
    stream = torch.get_rng_state()
    with_meter = script_run(watched)
    assert torch.equal(stream, torch.get_rng_state())
    after = with_meter["agent"].state_dict()
    assert all(torch.equal(x, after[name]) for name, x in bare["agent"].state_dict().items())
    run = gm.load("runs/cleanrl")
    assert not run.events()
    assert run.series("grad/all/norm/raw")[0].tolist() == list(range(48))
    assert run.series("grad/all/term/additivity_error")[1].max() < 1e-5
    assert run.series("grad/all/clip/threshold")[1].tolist() == [0.5] * 48
    where = run.steps()
    assert where["epoch"].tolist() == [
        epoch for _ in range(3) for epoch in (0, 1, 2, 3) for _ in range(4)
    ]
    assert where["env_steps"].tolist() == [512.0] * 16 + [1024.0] * 16 + [1536.0] * 16
    assert len(run.series("losses/policy_loss")[0]) == 3
    assert {"charts/episodic_return", "grad/actor/term/entropy/share"} <= set(run.names())
    assert run.facts["config"]["clip_coef"] == 0.2
