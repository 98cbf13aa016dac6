"""Lightning's own trainer, both ways of optimising: what is measured is what a hand computes, and
nothing else moves."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import os
import random
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gradiometer as gm
from gradiometer.errors import MissingExtra, RunExists, UnknownName

if importlib.util.find_spec("lightning") is None:
    pytest.skip("lightning is not installed", allow_module_level=True)

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from gradiometer.integrations.lightning import GradiometerCallback

pytestmark = [
    pytest.mark.slow,
    # a part of torch that is going away, and Lightning's advice for trainings larger than ours
    pytest.mark.filterwarnings("ignore:.*isinstance\\(treespec, LeafSpec\\)"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings(
        "ignore:You defined a `validation_step` but have no `val_dataloader`"
    ),
]
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
}
BATCHES = 6


def batches(count: int = BATCHES) -> DataLoader[Any]:
    x = torch.randn(count * 4, 6, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x), batch_size=4)


def norm(tensors: Iterator[Tensor | None]) -> float:
    return float(
        torch.stack([x.double().square().sum() for x in tensors if x is not None]).sum().sqrt()
    )


def gradient_norm(module: nn.Module) -> float:
    return norm(p.grad for p in module.parameters())


class Automatic(pl.LightningModule):
    """One optimizer, stepped by Lightning; keeps what a hand computes at each stage."""

    def __init__(self, lr: float = 0.1, width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(0.1), nn.Linear(width, 1)
        )
        self.by_hand: dict[str, list[float]] = {"raw": [], "clipped": [], "update": []}
        self._before: list[Tensor] = []

    def loss(self, batch: Any) -> Tensor:
        return (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch))

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.by_hand["raw"].append(gradient_norm(self))
        self._before = [p.detach().clone() for p in self.parameters()]

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        self.by_hand["clipped"].append(gradient_norm(self))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if len(self.by_hand["update"]) < len(self.by_hand["raw"]):
            moved = (p.detach() - q for p, q in zip(self.parameters(), self._before, strict=True))
            self.by_hand["update"].append(norm(moved))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Manual(pl.LightningModule):
    """An actor and a critic with an optimizer each; the actor steps with every second batch."""

    def __init__(self, delay: int = 2) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.delay = delay
        self.actor, self.critic = (
            nn.Linear(6, 2),
            nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1)),
        )
        self.by_hand: dict[str, list[float]] = {
            "actor/raw": [],
            "actor/clipped": [],
            "critic/raw": [],
            "critic/update": [],
        }

    def q(self, x: Tensor) -> Tensor:
        return self.critic(torch.cat([x, self.actor(x)], 1))  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        actor, critic = self.optimizers()  # type: ignore[misc]
        self.toggle_optimizer(critic)
        loss = (self.q(batch[0]) - 1).square().mean()
        self.log("critic_loss", loss)
        critic.zero_grad()
        self.manual_backward(loss)
        self.by_hand["critic/raw"].append(gradient_norm(self.critic))
        before = [p.detach().clone() for p in self.critic.parameters()]
        critic.step()
        moved = (p.detach() - q for p, q in zip(self.critic.parameters(), before, strict=True))
        self.by_hand["critic/update"].append(norm(moved))
        self.untoggle_optimizer(critic)
        if batch_idx % self.delay == self.delay - 1:
            self.toggle_optimizer(actor)
            loss = -self.q(batch[0]).mean()
            self.log("actor_loss", loss)
            actor.zero_grad()
            self.manual_backward(loss)
            self.by_hand["actor/raw"].append(gradient_norm(self.actor))
            self.clip_gradients(actor, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            self.by_hand["actor/clipped"].append(gradient_norm(self.actor))
            actor.step()
            self.untoggle_optimizer(actor)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.actor.parameters(), lr=0.1), torch.optim.Adam(
            self.critic.parameters(), lr=0.01
        )


def fit(
    module: pl.LightningModule,
    *callbacks: Any,
    validate: bool = False,
    ckpt: Any = None,
    **options: Any,
) -> Any:
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 1, "callbacks": list(callbacks), **options})
    trainer.fit(module, batches(), batches(2) if validate else None, ckpt_path=ckpt)
    return trainer


def watching(run: Any = "run", **options: Any) -> GradiometerCallback:
    return GradiometerCallback(run=run, **{"budget": None, **options})


def series(name: str, run: str | Path = "run") -> tuple[list[int], list[float]]:
    steps, values = gm.load(run).series(name)
    return steps.tolist(), values.tolist()


def test_three_lines_are_enough() -> None:
    torch.manual_seed(0)
    pl.Trainer(callbacks=GradiometerCallback(run="run"), max_epochs=1, **QUIET).fit(
        Automatic(), batches()
    )
    assert len(series("grad/all/norm/raw")[0])
    assert not gm.load("run").events("fault")


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    ("algorithm", "threshold"), [("norm", 0.5), ("norm", 1e6), ("value", 0.05), (None, None)]
)
def test_each_stage_is_what_a_hand_computes(
    algorithm: str | None, threshold: float | None, precision: str, accumulated: int
) -> None:
    torch.manual_seed(0)
    given = {
        "gradient_clip_val": threshold,
        "gradient_clip_algorithm": algorithm,
        "precision": precision,
    }
    module = Automatic()
    fit(module, watching(), max_epochs=2, accumulate_grad_batches=accumulated, **given)
    stages = {"raw", "update"} | ({"clipped"} if threshold else set())
    for stage in stages:
        steps, values = series(f"grad/all/norm/{stage}")
        assert steps == list(range(2 * BATCHES // accumulated))
        np.testing.assert_allclose(values, module.by_hand[stage], rtol=1e-5)
    if threshold is None:
        assert "grad/all/norm/clipped" not in gm.load("run").names()
        return
    assert set(series("grad/all/clip/threshold")[1]) == {threshold}
    assert set(series("grad/all/clip/active")[1]) == {float(threshold < 1e6)}
    ratios = np.divide(module.by_hand["clipped"], module.by_hand["raw"])
    np.testing.assert_allclose(series("grad/all/clip/ratio")[1], ratios, rtol=1e-4)


def test_a_closure_leaves_the_direction_to_be_seen() -> None:
    fit(Automatic(), watching())
    assert series("grad/all/cos_prev")[0] == list(range(1, BATCHES))


def test_accumulated_batches_are_told_apart_and_counted_in_samples() -> None:
    callback = watching()
    fit(Automatic(), callback, accumulate_grad_batches=3, max_epochs=4)
    assert set(series("meter/micro_batches")[1]) == {3.0}
    assert gm.load("run").facts["meter"]["micro_batch_size"] == 4


@pytest.mark.parametrize("delay", [1, 2])
def test_manual_optimisation_counts_rounds_where_lightning_counts_steps_of_all_optimizers(
    delay: int,
) -> None:
    torch.manual_seed(0)
    module = Manual(delay)
    trainer = fit(module, callback := watching())
    assert trainer.global_step == BATCHES + BATCHES // delay
    steps, values = series("grad/critic/norm/raw")
    assert steps == list(range(BATCHES))
    np.testing.assert_allclose(values, module.by_hand["critic/raw"], rtol=1e-5)
    np.testing.assert_allclose(
        series("grad/critic/norm/update")[1], module.by_hand["critic/update"], rtol=1e-5
    )
    for stage in ("raw", "clipped"):
        steps, values = series(f"grad/actor/norm/{stage}")
        assert steps == list(range(delay - 1, BATCHES, delay))
        np.testing.assert_allclose(values, module.by_hand[f"actor/{stage}"], rtol=1e-5)
    assert set(series("grad/actor/clip/threshold")[1]) == {0.1}
    run = gm.load("run")
    assert set(callback.meter.states.values()) == {"finite"}
    assert not run.events("missing")
    assert not run.events("fault")
    assert series("actor_loss")[0] == list(range(delay - 1, BATCHES, delay))


def test_the_learning_rate_is_that_of_the_step_not_of_the_schedule_after_it() -> None:
    fit(Automatic(), watching())
    assert series("optimizer/0/lr")[1] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


# What the module logs.


class Talkative(Automatic):
    """Logs from every hook that may, some values now and then, some only for the progress bar."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("seconds", float(batch_idx))
        if batch_idx % 3 == 0:
            self.log("rarely", 1.0)
        self.log("bar", 1.0, logger=False, prog_bar=True)
        self.log("constant", 0.5, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.log("after", float(self.trainer.fit_loop.total_batch_idx))

    def on_train_epoch_end(self) -> None:
        self.log("epoch_end", float(self.current_epoch))


def read_csv(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every value that Lightning's own logger wrote, with its step."""
    found: dict[str, list[tuple[int, float]]] = {}
    (path,) = folder.rglob("metrics.csv")
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name != "step":
                    found.setdefault(name, []).append((int(row["step"]), float(value)))
    return found


def points(run: str = "run") -> dict[str, list[tuple[int, float]]]:
    ours = ("grad/", "meter/", "optimizer/", "credit/")
    names = [name for name in gm.load(run).names() if not name.startswith(ours)]
    return {name: list(zip(*series(name, run), strict=True)) for name in names}


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_every_value_that_lightning_logs_is_read_once_at_its_step(
    interval: float, accumulated: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    every = {
        "log_every_n_steps": 1,
        "accumulate_grad_batches": accumulated,
        "val_check_interval": interval,
    }
    logger = CSVLogger(str(tmp_path / "logs"))
    fit(Talkative(), watching(), validate=True, max_epochs=2, logger=logger, **every)
    theirs, ours = read_csv(tmp_path / "logs"), points()
    assert ours.keys() == theirs.keys() - {"bar"}
    for name in theirs.keys() - {"epoch", "rarely"}:  # which Lightning repeats
        assert [step for step, _ in ours[name]] == [step for step, _ in theirs[name]], name
        np.testing.assert_allclose(
            [x for _, x in ours[name]], [x for _, x in theirs[name]], rtol=1e-6
        )


def test_values_logged_now_and_then_are_not_repeated() -> None:
    fit(Talkative(), watching(), validate=True, max_epochs=2)
    ours = points()
    assert [step for step, _ in ours["rarely"]] == [0, 3, 6, 9]
    assert [step for step, _ in ours["val/loss"]] == [5, 11]
    assert ours["after"] == [(step, float(step)) for step in range(12)]
    assert ours["epoch_end"] == [(5, 0.0), (11, 1.0)]
    assert [x for _, x in ours["epoch"]] == [0.0] * 6 + [1.0] * 6
    assert [step for step, _ in ours["constant"]] == list(range(12))
    assert "bar" not in ours


def test_lightning_logs_the_same_with_and_without_the_callback(tmp_path: Path) -> None:
    def logged(name: str, *callbacks: Any) -> str:
        torch.manual_seed(0)
        logger = CSVLogger(str(tmp_path / name))
        trainer = fit(
            Talkative(), *callbacks, validate=True, logger=logger, log_every_n_steps=2, max_epochs=2
        )
        assert trainer.loggers == [logger]
        return next((tmp_path / name).rglob("metrics.csv")).read_text(encoding="utf-8")

    assert logged("bare") == logged("watched", watching())


def test_the_sanity_check_does_not_count() -> None:
    callback = watching()
    fit(Automatic(), callback, validate=True, num_sanity_val_steps=2)
    assert series("val/loss")[0] == [BATCHES - 1]
    assert gm.load("run").newest_step == BATCHES - 1


def test_a_fast_dev_run_is_a_run_of_one_step() -> None:
    fit(Automatic(), watching(), validate=True, fast_dev_run=True)
    assert series("grad/all/norm/raw")[0] == [0]
    assert series("val/loss")[0] == [0]


def test_hyperparameters_and_settings_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    fit(Automatic(lr=0.03), watching(config={"width": "mine"}), gradient_clip_val=0.5)
    facts = gm.load("run").facts
    assert facts["seed"] == 7
    config = facts["config"]
    assert (config["lr"], config["width"]) == (0.03, "mine")
    assert (config["trainer"]["module"], config["trainer"]["gradient_clip_val"]) == (
        "Automatic",
        0.5,
    )
    fit(Automatic(), watching("other", seed=3))
    assert gm.load("other").facts["seed"] == 3


# The observer does not disturb.


def state_after(
    module: type[pl.LightningModule], *callbacks: Any, **options: Any
) -> dict[str, Any]:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    made = module()
    fit(made, *callbacks, validate=module is Automatic, max_epochs=3, **options)
    states = {
        f"{i}/{j}/{key}": x
        for i, one in enumerate(made.trainer.optimizers)
        for j, held in enumerate(one.state.values())
        for key, x in held.items()
    }
    grads = {f"{name}.grad": p.grad for name, p in made.named_parameters() if p.grad is not None}
    streams = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.random(),
        "python": random.random(),
    }
    return {**made.state_dict(), **states, **grads, **streams}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(x, b[key]) if isinstance(x, Tensor) else x == b[key] for key, x in a.items()
    )


LOOPS: dict[str, tuple[type[pl.LightningModule], dict[str, Any]]] = {
    "automatic": (Automatic, {"gradient_clip_val": 0.1}),
    "by value, accumulated": (
        Automatic,
        {
            "gradient_clip_val": 0.05,
            "gradient_clip_algorithm": "value",
            "accumulate_grad_batches": 2,
        },
    ),
    "bf16": (Automatic, {"precision": "bf16-mixed"}),
    "manual": (Manual, {}),
}


@pytest.mark.parametrize(
    "options", [{}, {"tier": "deep"}, {"direction": "exact", "every": 2}], ids=str
)
@pytest.mark.parametrize("loop", LOOPS)
def test_the_training_is_the_same_bits_with_and_without_the_callback(
    loop: str, options: dict[str, Any]
) -> None:
    module, given = LOOPS[loop]
    bare = state_after(module, **given)
    assert same(bare, state_after(module, watching(**options), **given))
    assert not gm.load("run").events("fault")
    assert len(series("grad/all/norm/raw")[0])


@pytest.mark.parametrize("loop", LOOPS)
def test_the_guard_sees_one_random_number(loop: str) -> None:
    class Drawing(GradiometerCallback):
        def on_train_batch_start(self, *args: Any) -> None:
            torch.rand(1)

    module, given = LOOPS[loop]
    assert not same(state_after(module, **given), state_after(module, Drawing(run=None), **given))


# The matrix: fresh, resumed, exception, twice.


class Trouble(Automatic):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 4:
            raise self.problem
        return super().training_step(batch, batch_idx)

    problem: BaseException = ValueError("the environment died")


def test_an_exception_is_an_event_and_closes_the_run() -> None:
    module = Trouble()
    with pytest.raises(ValueError, match="the environment died"):
        fit(module, callback := watching(), max_epochs=2)
    run = gm.load("run")
    (event,) = run.events("exception")
    assert "ValueError: the environment died" in event.message
    assert event.step == 4
    assert callback.session.open is None
    assert series("loss_step")[0] == [0, 1, 2, 3]
    assert series("grad/all/norm/raw")[0] == [0, 1, 2, 3]
    assert not module.trainer.optimizers[0]._optimizer_step_pre_hooks


def test_an_interrupt_is_an_event_too() -> None:
    module = Trouble()
    module.problem = KeyboardInterrupt()
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            fit(module, watching())
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [event.message for event in gm.load("run").events("exception")] == [
        "KeyboardInterrupt: "
    ]
    assert gm.load("run").newest_step == 3


def test_fit_again_goes_on_after_the_last_step() -> None:
    module, callback = Automatic(), watching()
    trainer = fit(module, callback, validate=True)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, batches(), batches(2))
    assert series("grad/all/norm/raw")[0] == list(range(2 * BATCHES))
    assert series("loss_step")[0] == list(range(2 * BATCHES))
    assert series("val/loss")[0] == [BATCHES - 1, 2 * BATCHES - 1]
    fit(module, callback)
    assert series("grad/all/norm/raw")[0] == list(range(3 * BATCHES))


def test_two_trainings_in_one_process_are_two_runs() -> None:
    first, second = Automatic(), Automatic()
    fit(first, callback := watching("first"))
    fit(second, watching("second"), max_epochs=2)
    assert series("grad/all/norm/raw", "first")[0] == list(range(BATCHES))
    assert series("grad/all/norm/raw", "second")[0] == list(range(2 * BATCHES))
    with pytest.raises(RunExists, match="overwrite=True"):
        fit(Automatic(), callback)


def test_another_module_may_take_the_place_of_the_run() -> None:
    callback = watching(overwrite=True)
    fit(Automatic(), callback, max_epochs=2)
    fit(Automatic(), callback)
    assert series("grad/all/norm/raw")[0] == list(range(BATCHES))


def checkpoint(
    module: pl.LightningModule, *callbacks: Any, folder: Path, at: int, **options: Any
) -> Path:
    """A training of two epochs, and its checkpoint at `at` of Lightning's steps."""
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=at, save_top_k=-1)
    fit(module, *callbacks, saving, enable_checkpointing=True, max_epochs=2, **options)
    return folder / f"step={at}.ckpt"


RESUMING = pytest.mark.filterwarnings(
    "ignore:You're resuming from a checkpoint that ended before the epoch",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:Using ModelCheckpoint with manual optimization",
)


@RESUMING
@pytest.mark.parametrize("same", [False, True], ids=["new callback", "same callback"])
@pytest.mark.parametrize("run", ["run", "auto"])
def test_a_checkpoint_takes_the_run_back_to_its_step(run: str, same: bool, tmp_path: Path) -> None:
    first = watching(run)
    path = checkpoint(Automatic(), first, folder=tmp_path / "saved", at=8)
    folder = first.meter.run
    assert gm.load(folder).newest_step == 11
    whole = dict(zip(*series("grad/all/norm/raw", folder), strict=True))
    second = first if same else watching(run)
    trainer = fit(Automatic(), second, ckpt=path, max_epochs=3)
    assert second.meter.run.resolve() == folder.resolve()
    steps, values = series("grad/all/norm/raw", folder)
    assert steps == list(range(trainer.global_step))
    assert all(whole[step] == value for step, value in zip(steps[:8], values[:8], strict=True))
    (event,) = gm.load(folder).events("resumed")
    assert (event.step, event.detail["steps"]) == (7, 4)
    assert series("loss_step", folder)[0] == steps
    assert (
        series("grad/all/cos_ema", folder)[0] == steps[1:]
    )  # the past is there: no gap after the checkpoint
    assert not gm.load(folder).events("fault")


@RESUMING
def test_the_step_of_a_run_with_several_optimizers_is_in_the_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(Manual(), watching(), folder=tmp_path / "saved", at=12)
    assert gm.load("run").newest_step == 11
    fit(Manual(), watching(), ckpt=path, max_epochs=3)
    (event,) = gm.load("run").events("resumed")
    assert (
        event.step == 7
    )  # 12 steps of Lightning's are 8 of the critic, which are our rounds, and 4 of the actor
    assert series("critic_loss")[0] == list(range(gm.load("run").newest_step + 1))


@RESUMING
@pytest.mark.parametrize(
    "options", [{"tier": "light"}, {"direction": "exact", "blocks": {"last": "3"}}], ids=str
)
def test_a_resumed_run_may_be_measured_otherwise(options: dict[str, Any], tmp_path: Path) -> None:
    path = checkpoint(Automatic(), watching(), folder=tmp_path / "saved", at=8)
    trainer = fit(Automatic(), watching(**options), ckpt=path, max_epochs=3)
    assert series("grad/all/norm/raw")[0] == list(range(trainer.global_step))
    assert not gm.load("run").events("fault")


@RESUMING
@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_a_checkpoint_made_without_us_begins_a_run_at_its_step(
    kind: type[pl.LightningModule], tmp_path: Path
) -> None:
    path = checkpoint(kind(), folder=tmp_path / "saved", at=6)
    fit(kind(), watching(), ckpt=path, max_epochs=2)
    assert series("grad/all/norm/raw")[0][0] == (6 if kind is Automatic else 3)
    assert not gm.load("run").events("resumed")


@RESUMING
def test_the_users_own_step_wins(tmp_path: Path) -> None:
    path = checkpoint(Automatic(), watching(), folder=tmp_path / "saved", at=8)
    fit(Automatic(), watching(resume=4), ckpt=path, max_epochs=2)
    assert gm.load("run").events("resumed")[0].step == 4
    assert series("grad/all/norm/raw")[0] == list(range(gm.load("run").newest_step + 1))


def test_a_checkpoint_is_plain_and_small(tmp_path: Path) -> None:
    path = checkpoint(Automatic(), watching(), folder=tmp_path / "saved", at=8)
    state = torch.load(path, weights_only=True)["callbacks"]["GradiometerCallback"]
    assert state["meter"]["next_step"] == 8


def test_a_checkpoint_after_the_training_knows_the_step(tmp_path: Path) -> None:
    trainer = fit(Automatic(), watching())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    state = torch.load(tmp_path / "end.ckpt", weights_only=True)["callbacks"]["GradiometerCallback"]
    assert state["meter"]["next_step"] == BATCHES


# Around it.


def test_disabled_it_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADIOMETER_DISABLED", "1")
    trainer = fit(Automatic(), watching(), validate=True)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    assert not (tmp_path / "run").exists()


def test_an_unknown_option_is_named_before_the_training() -> None:
    with pytest.raises(UnknownName, match="budget"):
        GradiometerCallback(bugdet=1)


def test_validation_and_test_alone_make_no_run(tmp_path: Path) -> None:
    module = Automatic()
    trainer = pl.Trainer(callbacks=[watching()], **QUIET)
    trainer.validate(module, batches(2), verbose=False)
    assert not (tmp_path / "run").exists()


def test_the_other_package_takes_the_same_callback() -> None:
    import pytorch_lightning

    class Plain(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(6, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = self.net(batch[0]).square().mean()
            self.log("loss", loss)
            return loss  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    assert issubclass(GradiometerCallback, (pytorch_lightning.Callback, pl.Callback))
    trainer = pytorch_lightning.Trainer(
        max_epochs=1, callbacks=watching(), gradient_clip_val=0.1, **QUIET
    )
    trainer.fit(Plain(), batches())
    assert series("loss")[0] == series("grad/all/norm/clipped")[0] == list(range(BATCHES))


def test_without_lightning_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "gradiometer.integrations.lightning")
    with pytest.raises(MissingExtra, match=r'pip install "gradiometer\[lightning\]"'):
        importlib.import_module("gradiometer.integrations.lightning")


DDP = """
import sys
import lightning.pytorch as pl, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from gradiometer.integrations.lightning import GradiometerCallback

class Plain(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1)

    def training_step(self, batch, batch_idx):
        mine = batch[0][self.global_rank :: self.trainer.world_size]
        loss = self.net(mine).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.net(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    devices, run = int(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    x = torch.randn(24, 6)
    loader = DataLoader(TensorDataset(x), batch_size=4)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    strategy = "ddp_spawn" if devices > 1 else "auto"
    callback = GradiometerCallback(run=run, budget=None)
    trainer = pl.Trainer(accelerator="cpu", devices=devices, strategy=strategy, max_epochs=2, callbacks=[callback],
                         gradient_clip_val=0.1, use_distributed_sampler=False, **quiet)
    trainer.fit(Plain(), loader, loader)
"""


@pytest.mark.proof
def test_of_two_processes_one_writes_what_a_single_one_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(DDP, encoding="utf-8")
    call = [sys.executable, "-W", "ignore", str(script), "2", "both"]
    subprocess.run(
        call, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    monkeypatch.setattr(sys, "argv", [str(script), "1", "alone"])
    runpy.run_path(str(script), run_name="__main__")
    assert not gm.load("both").events("fault")
    for stage in ("raw", "clipped", "update"):
        (steps, values), (expected_steps, expected) = (
            series(f"grad/all/norm/{stage}", run) for run in ("both", "alone")
        )
        assert steps == expected_steps == list(range(12))
        np.testing.assert_allclose(values, expected, rtol=1e-5)
    theirs = points("alone")
    assert {"loss_step", "loss_epoch", "val/loss"} < theirs.keys()
    for name, logged in points("both").items():
        np.testing.assert_allclose(logged, theirs[name], rtol=1e-5, err_msg=name)
