"""Any mix of what trainings do gives the oracle's numbers, and the weights it has without us.

The oracle is the same training once more, unwatched: it keeps every gradient, weight and update in
float64 and computes each number as its definition says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import gradiometer as gm

STEPS = 6
EVERY_FOURTH = {0, 4}
"""Steps at which what costs a whole pass more is read."""
SCALE = 64.0

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.02, momentum=0.9, nesterov=True
    ),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "fused adamw": lambda parameters: torch.optim.AdamW(
        parameters, lr=0.01, weight_decay=0.1, fused=True
    ),
    "foreach rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.003, foreach=True),
}
CLIPS: dict[str, tuple[Callable[..., Any], float]] = {
    "norm": (clip_grad_norm_, 0.02),
    "value": (clip_grad_value_, 0.01),
    "each micro-batch": (clip_grad_norm_, 0.5),
}


@dataclass(frozen=True)
class Mix:
    """What a training does."""

    optimizer: str = "adam"
    micro_batches: int = 1
    clip: str = "none"
    precision: str = "float32"
    tied: bool = False
    frozen: bool = False
    sparse: bool = False
    joined: bool = False
    """A layer is made of two parameters by torch.cat, as a fused QKV is."""
    compiled: bool = False
    parallel: bool = False
    no_sync: bool = False
    """Under DDP, gradients are averaged with the last micro-batch only."""
    zero_after: bool = False
    set_to_none: bool = True
    tier: str = "standard"

    @property
    def possible(self) -> bool:
        """Torch itself refuses the others, but for clips of scaled gradients: a fault with a name."""
        if self.clip == "each micro-batch" and self.precision == "scaled":
            return False
        if self.no_sync and not self.parallel:
            return False
        if self.sparse:
            return not (
                self.tied
                or self.parallel
                or self.compiled
                or self.clip != "none"
                or self.precision == "scaled"
                or self.optimizer in ("adam", "fused adamw", "foreach rmsprop", "momentum")
            )
        return True


class Net(nn.Module):
    """A small policy with one of everything."""

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.mix = mix
        self.embed = nn.Embedding(11, 6, sparse=mix.sparse)
        if mix.joined:
            self.query = nn.Parameter(torch.randn(4, 6) / 3)
            self.key = nn.Parameter(torch.randn(4, 6) / 3)
        else:
            self.trunk = nn.Linear(6, 8)
        self.actor = nn.Linear(8, 6)
        self.critic = nn.Linear(8, 1)
        if mix.frozen:
            self.actor.bias.requires_grad_(False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        h = self.embed(tokens)
        h = h @ torch.cat([self.query, self.key]).T if self.mix.joined else self.trunk(h)
        h = torch.tanh(h)
        logits = self.actor(h)
        return logits @ self.embed.weight.T if self.mix.tied else logits, self.critic(h)


@dataclass
class Oracle:
    """Everything in float64, a vector for each step."""

    raw: list[np.ndarray[Any, Any]] = field(default_factory=list)
    clipped: list[np.ndarray[Any, Any]] = field(default_factory=list)
    before: list[np.ndarray[Any, Any]] = field(default_factory=list)
    after: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def expected(self, mix: Mix, there: slice) -> dict[str, dict[int, float]]:
        """By name and step, of the elements `there`."""
        g, c = [v[there] for v in self.raw], [v[there] for v in self.clipped]
        w, u = (
            [v[there] for v in self.before],
            [b[there] - a[there] for a, b in zip(self.before, self.after, strict=True)],
        )
        norm = np.linalg.norm
        numbers = {
            "norm/raw": {t: norm(g[t]) for t in range(STEPS)},
            "max_abs": {t: np.abs(g[t]).max() for t in range(STEPS)},
            "nonfinite": dict.fromkeys(range(STEPS), 0.0),
        }
        if mix.clip == "each micro-batch":  # what is raw then is a question of words
            numbers = {"nonfinite": numbers["nonfinite"]}
        if mix.clip != "none":
            numbers["norm/clipped"] = {t: norm(c[t]) for t in range(STEPS)}
        if mix.tier == "light":
            return numbers
        numbers |= {
            "norm/update": {t: norm(u[t]) for t in range(STEPS)},
            "update_ratio": {t: norm(u[t]) / norm(w[t]) for t in range(STEPS)},
            "cos_update": {t: _cosine(-c[t], u[t]) for t in EVERY_FOURTH},
        }
        if mix.clip == "each micro-batch":
            return numbers
        return numbers | {
            "zero_fraction": {t: (g[t] == 0).mean() for t in range(STEPS)},
            "positive_fraction": {t: (g[t] > 0).mean() for t in range(STEPS)},
            "participation": {t: (g[t] ** 2).sum() ** 2 / (g[t] ** 4).sum() for t in range(STEPS)},
            "cos_prev": {t: _cosine(g[t], c[t - 1]) for t in range(1, STEPS)},
            "mean": {t: g[t].mean() for t in EVERY_FOURTH},
        }


def _cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def flat(tensors: Iterator[Tensor | None], like: list[Tensor]) -> np.ndarray[Any, Any]:
    parts = [
        torch.zeros_like(own) if given is None else given.detach().to_dense()
        for given, own in zip(tensors, like, strict=True)
    ]
    return torch.cat([part.double().flatten() for part in parts]).numpy()


def _clip(mix: Mix, net: nn.Module) -> None:
    clip, most = CLIPS[mix.clip]
    clip(net.parameters(), most)


def train(mix: Mix, folder: Path | None) -> tuple[nn.Module, Oracle]:
    """The training, watched if there is a folder; what it did."""
    torch.manual_seed(7)
    net, oracle = Net(mix), Oracle()
    torch.manual_seed(100 + (distributed.get_rank() if mix.parallel else 0))
    model: nn.Module = DistributedDataParallel(net) if mix.parallel else net
    call = torch.compile(model, backend="eager") if mix.compiled else model
    optimizer = OPTIMIZERS[mix.optimizer](net.parameters())
    scaled = mix.precision == "scaled"
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=scaled)
    trained = [p for p in net.parameters() if p.requires_grad]
    if folder is None:
        meter: Any = nullcontext()
    else:
        meter = gm.watch(model, optimizer, run=folder, budget=None, tier=mix.tier)

    def backward() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=mix.precision == "autocast"):
            logits, value = call(torch.randint(11, (9,)))
            loss = logits.float().square().mean() + (value.float() - 1).square().mean()
        scaler.scale(loss / mix.micro_batches).backward()
        if mix.clip == "each micro-batch":
            _clip(mix, net)

    def gradients(scale: float) -> np.ndarray[Any, Any]:
        return flat((p.grad for p in trained), trained) / scale

    with meter:
        for _ in range(STEPS):
            if not mix.zero_after:
                optimizer.zero_grad(set_to_none=mix.set_to_none)
            for number in range(mix.micro_batches):
                last = number == mix.micro_batches - 1
                with model.no_sync() if mix.no_sync and not last else nullcontext():
                    backward()
            scale = SCALE if scaled else 1.0
            oracle.raw.append(gradients(scale))
            if mix.clip in ("norm", "value"):
                scaler.unscale_(optimizer)
                scale = 1.0
                _clip(mix, net)
            oracle.clipped.append(gradients(scale))
            oracle.before.append(flat(iter(trained), trained))
            scaler.step(optimizer)
            scaler.update()
            oracle.after.append(flat(iter(trained), trained))
            if mix.zero_after:
                optimizer.zero_grad(set_to_none=mix.set_to_none)
            if folder is not None:
                meter.log({"reward": 1.0})
    return net, oracle


@contextmanager
def process_group(mix: Mix) -> Iterator[None]:
    """A group of this process alone, for DDP, where there is none."""
    wanted = mix.parallel and not distributed.is_initialized()
    if wanted:
        store = distributed.HashStore()
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        if wanted:
            distributed.destroy_process_group()


def blocks_of(net: nn.Module) -> dict[str, slice]:
    """Where the elements of some blocks are."""
    trained = [(name, p.numel()) for name, p in net.named_parameters() if p.requires_grad]
    before = sum(size for name, size in trained if not name.startswith("critic"))
    return {"all": slice(None), "critic": slice(before, None)}


def check(mix: Mix, folder: Path) -> None:
    """Same bits, every step once, and the oracle's numbers."""
    with process_group(mix):
        bare, oracle = train(mix, None)
        watched, _ = train(mix, folder)
    torch.compiler.reset()
    after = watched.state_dict()
    for name, weight in bare.state_dict().items():
        assert torch.equal(weight, after[name]), f"{name}: measuring changed the training"
    if mix.parallel and distributed.is_initialized() and distributed.get_rank():
        return
    run = gm.load(folder)
    assert not [event for event in run.events() if event.kind in ("fault", "skipped-step")]
    assert run.newest_step == STEPS - 1
    assert list(run.series("reward")[0]) == list(range(STEPS))
    near = {"rel": 2e-3 if mix.precision == "autocast" else 2e-4, "abs": 1e-6}
    for block, there in blocks_of(bare).items():
        for metric, numbers in oracle.expected(mix, there).items():
            steps, values = run.series(f"grad/{block}/{metric}")
            measured = dict(zip(steps.tolist(), values.tolist(), strict=True))
            assert measured == pytest.approx(numbers, **near), f"grad/{block}/{metric}"


seldom = st.sampled_from([False, False, False, True])
mixes = st.builds(
    Mix,
    optimizer=st.sampled_from(list(OPTIMIZERS)),
    micro_batches=st.sampled_from([1, 2, 4]),
    clip=st.sampled_from(["none", *CLIPS]),
    precision=st.sampled_from(["float32", "autocast", "scaled"]),
    tied=st.booleans(),
    frozen=st.booleans(),
    sparse=seldom,
    joined=st.booleans(),
    compiled=seldom,  # a compilation takes longer than the training
    parallel=st.booleans(),
    no_sync=st.booleans(),
    zero_after=st.booleans(),
    set_to_none=st.booleans(),
    tier=st.sampled_from(["light", "standard", "deep"]),
).filter(lambda mix: mix.possible)

drawn = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.slow
@settings(drawn, max_examples=10)
@given(mixes)
def test_any_mix_gives_the_numbers_of_the_oracle_and_the_bits_of_the_training(mix: Mix) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        check(mix, Path(scratch) / "run")


@pytest.mark.proof
@settings(drawn, max_examples=1_000)
@given(mixes)
def test_a_thousand_mixes_do(mix: Mix) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        check(mix, Path(scratch) / "run")


TWO_RANKS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import torch
import test_mixes as mixes
torch.distributed.init_process_group("gloo", rank=int(sys.argv[1]), world_size=int(sys.argv[2]))
for number, mix in enumerate(mixes.OF_RANKS[: int(sys.argv[5])]):
    mixes.check(mix, Path(sys.argv[4]) / str(number))
    torch.distributed.barrier()
"""
OF_RANKS = [
    Mix(parallel=True, micro_batches=4, no_sync=True, clip="norm"),
    Mix(parallel=True, micro_batches=2, joined=True, optimizer="fused adamw", zero_after=True),
    Mix(parallel=True, micro_batches=2, no_sync=True, precision="scaled", clip="value", tied=True),
    Mix(parallel=True, micro_batches=4, no_sync=True, joined=True, tier="light", set_to_none=False),
    # a compilation in each rank takes longer than all the others
    Mix(parallel=True, compiled=True, frozen=True, optimizer="sgd", tier="deep"),
]


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, pytest.param(5, marks=pytest.mark.proof)])
def test_so_do_two_ranks(ranks: Callable[..., Any], tmp_path: Path, count: int) -> None:
    ranks(TWO_RANKS, 2, Path(__file__).parent, tmp_path, count)
