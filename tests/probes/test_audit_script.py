"""A script under audit: what lived before it is not the script's."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from gradiometer.probes.auditscript import Script, observed

TRAINING = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""


class Unsure:
    """What a tensordict gives for `==`: no truth value."""

    def __bool__(self) -> bool:
        raise RuntimeError("not permitted")


class Odd(nn.Module):
    def __eq__(self, other: object) -> Unsure:  # type: ignore[override]
        return Unsure()

    def __hash__(self) -> int:
        return 1


def test_modules_that_lived_before_are_left_out_without_being_compared(tmp_path: Path) -> None:
    strangers = [Odd(), Odd(), nn.Linear(3, 3)]
    script = tmp_path / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    state = observed(Script(path=script))
    assert [tuple(p.shape) for p in state.named.values()] == [(1, 2), (1,)]
    assert len(strangers) == 3
