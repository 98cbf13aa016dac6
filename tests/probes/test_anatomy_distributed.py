"""Two real ranks share the micro-batches of a probe: the same numbers as one process, and nothing
is dropped."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import gradiometer as gm

rank, world, limit = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
if world > 1:
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    model = DistributedDataParallel(model)
rows = torch.arange(7 * 3)   # 7 groups of 3: nothing divides by 2
generator = torch.Generator().manual_seed(1)
features, rewards = torch.randn(21, 6, generator=generator), torch.randn(21, generator=generator)

def terms(rows):
    value = model(rows["features"]).squeeze(-1)
    found = {"task": rows["advantages"] * value, "square": 0.1 * value**2}
    return found

result = gm.anatomy(model, {"features": features, "advantages": rewards}, terms, rewards=rewards, groups=rows // 3,
                    num_buckets=2, null=True, memory_limit=limit)
# the next step of a data-parallel model goes on as if nothing had happened
model(features).sum().backward()
gradient = float(sum(p.grad.norm() ** 2 for p in model.parameters()))
if rank == 0:
    print(json.dumps({"metrics": result.metrics, "gradient": gradient, "tables": result.tables["anatomy"]["vectors"]}))
"""


@pytest.mark.parametrize("limit", [2**30, 0])
def test_two_ranks_give_the_numbers_of_one(
    limit: int, ranks: Callable[..., list[tuple[str, str]]]
) -> None:
    alone, together = (json.loads(ranks(SCRIPT, world, limit)[0][0]) for world in (1, 2))
    assert together["tables"] == ("exact" if limit else "sketch")
    assert together["metrics"]["grad_norm/all/sample_count"] == 21
    assert set(alone["metrics"]) == set(together["metrics"])
    for name, value in alone["metrics"].items():
        assert together["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-7), name
    assert together["gradient"] == pytest.approx(alone["gradient"], rel=1e-5)


DIFFERENT = """
import sys
import torch
import gradiometer as gm
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
model = torch.nn.Linear(3, 1)
torch.manual_seed(rank if sys.argv[3] == "0" else 0)
rewards, features = torch.randn(8), torch.randn(8, 3)

def terms(rows):
    if sys.argv[3] == "1" and rank == 1:
        raise KeyError("only here")
    return {"task": model(rows["features"]).squeeze(-1)}

try:
    gm.anatomy(model, {"features": features}, terms, rewards=rewards, groups=torch.arange(8) // 2)
except Exception as problem:
    print(type(problem).__name__, problem)
"""


def test_ranks_with_batches_of_their_own_and_a_rank_in_trouble_are_told_of(
    ranks: Callable[..., list[tuple[str, str]]],
) -> None:
    said = ranks(DIFFERENT, 2, 0)
    assert all("same batch" in out for out, _ in said), said
    said = ranks(DIFFERENT, 2, 1)
    assert "another rank could not go on: KeyError" in said[0][0]
    assert said[1][0].startswith("KeyError")
