"""The processes of a soak: `train` is a real training with all that can be watched, `follow` are
the pages that look on.

python -m benchmarks.soak_actors train FOLDER --life 0 --resume -1 --rate 40
python -m benchmarks.soak_actors follow URL --clients 10 --out FILE
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.soak_counting import Ledger

__all__ = ["RUN", "checkpoints", "ledger_path", "main"]

RUN = "a2c"
ENVIRONMENTS, HORIZON, DISCOUNT = 8, 4, 0.99
CHECKPOINT_EVERY = 20
CHECKPOINTS = 20
TABS = (
    "overview",
    "gradients",
    "terms",
    "findings",
    "overview",
    "estimators",
    "gradients",
    "compare",
    "overview",
    "dynamics",
)
PACE_SECONDS = 1.0
"""The page asks for what is new at most once a second."""


def ledger_path(folder: Path, life: int) -> Path:
    """What one process of the training wrote down."""
    return folder / f"ledger-{life:03d}.bin"


def checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints that are there, by step."""
    return {int(file.stem): file for file in sorted((folder / "checkpoints").glob("*.pt"))}


class Training:
    """Advantage actor-critic on CartPole, at a steady pace, with a checkpoint every half a second
    or so."""

    def __init__(self, folder: Path) -> None:
        import gymnasium
        import torch

        torch.set_num_threads(1)
        self.folder = folder
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.environments = gymnasium.make_vec("CartPole-v1", num_envs=ENVIRONMENTS)
        self.model = torch.nn.ModuleDict(
            {
                "trunk": torch.nn.Sequential(
                    torch.nn.Linear(4, 64),
                    torch.nn.Tanh(),
                    torch.nn.Linear(64, 64),
                    torch.nn.Tanh(),
                ),
                "actor": torch.nn.Linear(64, 2),
                "critic": torch.nn.Linear(64, 1),
            }
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=7e-4)
        self.observed, _ = self.environments.reset(seed=0)
        self.running = [0.0] * ENVIRONMENTS
        self.returns: deque[float] = deque([0.0], maxlen=50)

    def update(self, meter: Any, step: int) -> None:
        """One rollout and one optimizer step; `tick` is what the soak itself knows of every
        step."""
        import torch

        states, actions, targets = self._rollout()
        hidden = self.model["trunk"](states)
        policy: Any = torch.distributions.Categorical(logits=self.model["actor"](hidden))
        values = self.model["critic"](hidden).squeeze(-1)
        advantages = targets - values.detach()
        entropy = policy.entropy().mean()
        self.optimizer.zero_grad()
        with meter.terms(
            policy=-(policy.log_prob(actions) * advantages).mean(),
            value=0.5 * (targets - values).square().mean(),
            entropy=-0.01 * entropy,
        ) as loss:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        reward = sum(self.returns) / len(self.returns)
        meter.log(tick=float(step), reward=reward, entropy=entropy, advantages=advantages)

    def _rollout(self) -> tuple[Any, Any, Any]:
        import torch

        states, actions, rewards, going = [], [], [], []
        with torch.no_grad():
            for _ in range(HORIZON):
                state = torch.as_tensor(self.observed)
                logits = self.model["actor"](self.model["trunk"](state))
                action = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
                self.observed, reward, ended, cut, _ = self.environments.step(action.numpy())
                self._count(reward, ended | cut)
                states.append(state)
                actions.append(action)
                rewards.append(torch.as_tensor(reward, dtype=torch.float32))
                going.append(torch.as_tensor(~ended, dtype=torch.float32))
            value = self.model["critic"](
                self.model["trunk"](torch.as_tensor(self.observed))
            ).squeeze(-1)
            targets = []
            for reward, on in zip(reversed(rewards), reversed(going), strict=True):
                value = reward + DISCOUNT * on * value
                targets.append(value)
        return torch.cat(states), torch.cat(actions), torch.cat(targets[::-1])

    def _count(self, rewards: Any, done: Any) -> None:
        for place, (reward, over) in enumerate(zip(rewards, done, strict=True)):
            self.running[place] += float(reward)
            if over:
                self.returns.append(self.running[place])
                self.running[place] = 0.0

    def save(self, meter: Any, step: int) -> None:
        """A checkpoint, whole or not at all; the older ones go."""
        import torch

        content = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "meter": meter.state_dict(),
        }
        partial = self.folder / "checkpoints" / "partial"
        torch.save(content, partial)
        partial.replace(self.folder / "checkpoints" / f"{step:09d}.pt")
        for old in sorted(checkpoints(self.folder))[:-CHECKPOINTS]:
            (self.folder / "checkpoints" / f"{old:09d}.pt").unlink()

    def restore(self, step: int) -> dict[str, Any]:
        """Go on from a checkpoint; the meter's part of it."""
        import torch

        content = torch.load(checkpoints(self.folder)[step], weights_only=False)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        return dict(content["meter"])


def train(folder: Path, *, life: int, resume: int, rate: float) -> None:
    """Train until SIGTERM asks for an end, or SIGKILL does not ask."""
    import gradiometer as gm

    _keep_ledger(Ledger(ledger_path(folder, life)))
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    training = Training(folder)
    past = training.restore(resume) if resume >= 0 else {}
    with gm.watch(
        training.model,
        training.optimizer,
        run=folder / "runs" / RUN,
        budget=None,
        resume=resume if resume >= 0 else None,
        sinks=["jsonl", "tensorboard"],
        doctor="live",
        config={"rate": rate, "max_reward": 500},
        quiet=True,
        seed=0,
    ) as meter:
        meter.load_state_dict(past)
        step, due = resume, time.monotonic()
        while not stopping:
            step += 1
            meter.at(env_steps=step * ENVIRONMENTS * HORIZON)
            training.update(meter, step)
            if step % CHECKPOINT_EVERY == 0:
                training.save(meter, step)
            due = max(due + 1 / rate, time.monotonic() - 1.0)
            time.sleep(max(0.0, due - time.monotonic()))


def _keep_ledger(ledger: Ledger) -> None:
    """Where the meter hands a row over to writer and sinks, it is written down first."""
    from gradiometer.records import Row
    from gradiometer.store.sinks import Fanout

    put = Fanout.put

    def noted(self: Fanout, item: Any, *, logged: bool = False) -> None:
        if isinstance(item, Row):
            ledger.note(item.step, time.time(), item.values)
        put(self, item, logged=logged)

    Fanout.put = noted  # type: ignore[method-assign]


class Page:
    """One browser's page: the whole view, then what is new each time the server says that something
    changed."""

    def __init__(self, client: Any, tab: str) -> None:
        self.client, self.tab = client, tab
        self.cursor, self.runs = "", list[str]()
        self.newest: int | None = None
        self.seconds: list[float] = []
        self.told: Counter[str] = Counter()
        self.troubles: list[str] = []

    async def follow(self) -> None:
        """For ever; a stream that ends is opened again, as EventSource does, and is counted."""
        first = ["/", "/runs.json"]
        while True:
            try:
                while first:
                    await self.ask(first[0])
                    first.pop(0)
                async for event in self._events():
                    await self._hear(event)
                self.troubles.append("the stream ended")
            except Exception as problem:
                self.troubles.append(f"{type(problem).__name__}: {problem}")
            await asyncio.sleep(PACE_SECONDS)

    async def ask(self, path: str, **query: str | list[str]) -> Any:
        """An answer, timed; one that is not 200 is a trouble."""
        start = time.perf_counter()
        answer = await self.client.get(
            path, params={name: value for name, value in query.items() if value}
        )
        self.seconds.append(time.perf_counter() - start)
        self.told["bytes"] += answer.num_bytes_downloaded
        if answer.status_code != 200:
            self.troubles.append(f"{path}: {answer.status_code}: {answer.text[:200]}")
            return None
        return answer.json() if path.endswith(".json") else None

    async def _events(self) -> AsyncIterator[str]:
        async with self.client.stream("GET", "/live") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event: "):
                    yield line.removeprefix("event: ")

    async def _hear(self, event: str) -> None:
        self.told[event] += 1
        if event == "runs":
            await self.ask("/runs.json")
        started = time.monotonic()
        view = await self.ask(f"/{self.tab}.json", run=self.runs, after=self.cursor)
        if view is not None:
            self._take(view)
        await asyncio.sleep(max(0.0, started + PACE_SECONDS - time.monotonic()))

    def _take(self, view: dict[str, Any]) -> None:
        self.told["delta" if view["delta"] else "whole"] += 1
        self.cursor, self.runs = view["cursor"], view["runs"]
        steps = [
            line["points"]["steps"][-1]
            for chart in view["charts"]
            for line in chart["lines"]
            if line["points"]["steps"]
        ]
        self.newest = max(steps, default=self.newest)


async def follow(where: str, *, clients: int, out: Path) -> None:
    """Pages that look on until SIGTERM; then what they met."""
    import httpx

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    limits = httpx.Limits(
        max_connections=None, keepalive_expiry=2.0
    )  # a browser asks again where a server let go; httpx not
    timeout = httpx.Timeout(60, read=60)
    async with httpx.AsyncClient(base_url=where, timeout=timeout, limits=limits) as client:
        pages = [Page(client, TABS[place % len(TABS)]) for place in range(clients)]
        tasks = [asyncio.create_task(page.follow()) for page in pages]
        await ended.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    out.write_text(json.dumps([_met(page) for page in pages]), encoding="utf-8")


def _met(page: Page) -> dict[str, Any]:
    return {
        "tab": page.tab,
        "newest": page.newest,
        "seconds": page.seconds,
        "told": dict(page.told),
        "troubles": page.troubles,
    }


def main(arguments: list[str]) -> None:
    """One of the two."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak_actors")
    parser.add_argument("part", choices=["train", "follow"])
    parser.add_argument("where")
    parser.add_argument("--life", type=int, default=0)
    parser.add_argument("--resume", type=int, default=-1)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("clients.json"))
    asked = parser.parse_args(arguments)
    if asked.part == "train":
        train(Path(asked.where), life=asked.life, resume=asked.resume, rate=asked.rate)
    else:
        asyncio.run(follow(asked.where, clients=asked.clients, out=asked.out))


if __name__ == "__main__":
    main(sys.argv[1:])
