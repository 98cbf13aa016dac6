"""What `gm.watch` with its default settings takes of a real training: transformers, and PPO of Stable-Baselines3."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradiometer as gm
from benchmarks.models import num_parameters, transformer
from benchmarks.timing import row

__all__ = ["main", "next_token_loss", "train_step"]

PPO_STEPS = 20_480  # ten rollouts of SB3's default 2,048


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Seconds of one training: on the clock, on all cores, in the meter's hooks, and in `watch()` before it."""

    wall: float
    cpu: float
    hooks: float
    setting_up: float
    run: Path | None


def next_token_loss(model: nn.Module, batch: int, length: int, vocabulary: int = 2000) -> Callable[[], Tensor]:
    """The loss on one batch of noise, forward anew at each call."""
    tokens = torch.randint(vocabulary, (batch, length + 1), generator=torch.Generator().manual_seed(2))

    def loss() -> Tensor:
        return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return loss


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Forward, backward, clip, step."""
    parameters = list(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def timed(model: nn.Module, optimizer: torch.optim.Optimizer, train: Callable[[], object], run: Path | None) -> Taken:
    """Train to the end, watched when there is a folder to keep it in; closing the meter counts."""
    start = time.perf_counter()
    meter = None if run is None else gm.watch(model, optimizer, run=run)
    setting_up = time.perf_counter() - start
    start, start_cpu = time.perf_counter(), time.process_time()
    train()
    if meter is not None:
        meter.close()
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    # The rig counts every hook, the first measured step and the unmeasured ones too, which `meter/share` leaves out or lags.
    hooks = 0.0 if meter is None else meter._rig.seconds
    return Taken(wall=wall, cpu=cpu, hooks=hooks, setting_up=setting_up, run=run)


def train_transformer(make: Callable[[], nn.Module], steps: int, run: Path | None) -> Taken:
    """`steps` steps on 4 × 64 tokens; the first, which allocates and warms up, comes before the clock starts."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = train_step(model, optimizer, next_token_loss(model, 4, 64))
    step()
    return timed(model, optimizer, lambda: [step() for _ in range(steps)], run)


def train_ppo(run: Path | None) -> Taken:
    """SB3's defaults on CartPole-v1, from the first environment step to the last update."""
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", verbose=0)
    return timed(model.policy, model.policy.optimizer, lambda: model.learn(PPO_STEPS), run)


def side_by_side(name: str, train: Callable[[Path | None], Taken], pairs: int, target: str, folder: Path) -> None:
    """Train with and without in turns, each pair in the other order, and print the medians."""
    without: list[Taken] = []
    watched: list[Taken] = []
    for number in range(pairs):
        run = folder / f"{name.replace(' ', '-')}-{number}"
        for given in (None, run) if number % 2 == 0 else (run, None):
            (without if given is None else watched).append(train(given))
    bare = statistics.median(one.wall for one in without)
    print(f"\n{name}, {pairs} pairs, {torch.get_num_threads()} threads")
    print(row("without", bare, bare))
    print(row("gm.watch, default settings", statistics.median(one.wall for one in watched), bare, target))
    print_overheads(without, watched)
    print(f"{'one-time set-up, in watch()':<44} {statistics.median(one.setting_up for one in watched) * 1e3:>10.3f} ms")


def print_overheads(without: list[Taken], watched: list[Taken]) -> None:
    """Each pair's own overhead on the clock and in CPU time, the meter's own count, and what it bought."""
    walls = sorted(100 * (b.wall / a.wall - 1) for a, b in zip(without, watched, strict=True))
    cpus = sorted(100 * (b.cpu / a.cpu - 1) for a, b in zip(without, watched, strict=True))
    spread = statistics.median(abs(a.wall / b.wall - 1) for a, b in pairwise(without))
    for clock, percents in (("wall time", walls), ("CPU time", cpus)):
        middle = statistics.median(percents)
        print(f"{f'overhead by pair, {clock}':<44} {middle:>+10.2f} %   from {percents[0]:+.2f} to {percents[-1]:+.2f}")
    print(
        f"{'two trainings without, one after the other':<44} {100 * spread:>10.2f} %   apart: the noise of this machine"
    )
    hooks = statistics.median(100 * one.hooks / one.wall for one in watched)
    print(f"{'in the hooks of the meter, all steps':<44} {hooks:>10.2f} %")
    shares, counts = zip(*(own_share(one.run) for one in watched if one.run is not None), strict=True)
    measured = statistics.median(counts)
    print(f"{'meter/share, at the end':<44} {100 * statistics.median(shares):>10.2f} %   {measured:g} measured steps")


def own_share(folder: Path) -> tuple[float, int]:
    """What the meter itself says it took, and at how many steps it measured."""
    with gm.load(folder) as run:
        _, shares = run.series("meter/share")
    return float(shares[-1]), len(shares)


def main() -> None:
    """Two transformers and PPO."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for width, depth, steps, pairs in ((384, 5, 60, 4), (768, 11, 20, 2)):
            name = f"transformer of {num_parameters(transformer(width, depth)) / 1e6:.0f}M parameters, {steps} steps"

            def train(run: Path | None, width: int = width, depth: int = depth, steps: int = steps) -> Taken:
                return train_transformer(lambda: transformer(width, depth), steps, run)

            side_by_side(name, train, pairs, "target ≤ 1.01 ×", folder)
        side_by_side(f"SB3 PPO on CartPole-v1, {PPO_STEPS:,} steps", train_ppo, 4, "target ≤ 1.02 ×", folder)


if __name__ == "__main__":
    main()
