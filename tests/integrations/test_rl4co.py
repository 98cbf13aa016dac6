"""The adapter against rl4co itself: checkpoints that its trainer wrote here, its own training step,
its own layout."""

from __future__ import annotations

import importlib.util
import json
import math
import pickle
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradiometer.cli.main import run as gradiometer
from gradiometer.errors import MissingExtra, UsageError
from gradiometer.integrations.rl4co import open_checkpoint
from gradiometer.probes.replicates import (
    OpenedPolicy,
    Recipe,
    Replicates,
    Subject,
    gradient_of,
    replicates,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("rl4co") is None, reason="rl4co is not installed"),
    # rl4co hands modules to Lightning as hyperparameters, and Lightning uses a part of torch that
    # is going away
    pytest.mark.filterwarnings(
        "ignore:Attribute '(env|policy)' is an instance of `nn.Module`:UserWarning"
    ),
    pytest.mark.filterwarnings("ignore:.*isinstance\\(treespec, LeafSpec\\)"),
]
TINY = {"embed_dim": 16, "num_heads": 2, "num_encoder_layers": 1, "feedforward_hidden": 16}
NUM_LOC = 10


@dataclass(frozen=True)
class Trained:
    model: Any
    path: Path

    def opened(self, **changed: Any) -> OpenedPolicy:
        return open_checkpoint(
            self.path,
            **{"problem": "tsp", "num_loc": NUM_LOC, "device": "cpu", "trust": True, **changed},
        )


def train(folder: Path, algorithm: str = "POMO", problem: str = "tsp", **policy: Any) -> Trained:
    import rl4co.models
    from rl4co.envs import get_env
    from rl4co.utils import RL4COTrainer

    torch.manual_seed(0)
    env = get_env(problem, generator_params={"num_loc": NUM_LOC})
    sizes = {"batch_size": 8, "train_data_size": 16, "val_data_size": 8, "test_data_size": 8}
    made = getattr(rl4co.models, algorithm)
    model = made(env, policy_kwargs=TINY | policy, optimizer_kwargs={"lr": 1e-2}, **sizes)
    quiet = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
    )
    trainer = RL4COTrainer(
        max_epochs=1,
        accelerator="cpu",
        precision="32-true",
        default_root_dir=folder,
        limit_val_batches=0,
        **quiet,
    )
    trainer.fit(model)
    trainer.save_checkpoint(folder / f"{algorithm}.ckpt", weights_only=False)
    return Trained(model, folder / f"{algorithm}.ckpt")


@pytest.fixture(scope="module")
def pomo(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("pomo"))


def measured(
    opened: OpenedPolicy, subject: Subject, *, seed: int = 1234, **changed: Any
) -> Replicates:
    given: dict[str, Any] = {
        "num_replicates": 2,
        "batch_size": 4,
        "config": opened.config,
        **changed,
    }
    instances = opened.instances(8, 5)
    return replicates(
        subject.rollout, instances, model=subject.model, seed=seed, iid=opened.iid, **given
    )


def test_the_policy_has_the_weights_that_rl4co_trained(pomo: Trained) -> None:
    loaded = pomo.opened().load().parameters()
    trained = dict(pomo.model.policy.named_parameters())
    assert loaded.keys() == trained.keys()
    for name, weights in trained.items():
        assert torch.equal(loaded[name], weights), name


def test_the_state_dict_counts_where_it_differs_from_the_policy_beside_it(
    pomo: Trained, tmp_path: Path
) -> None:
    content = torch.load(pomo.path, weights_only=False)  # as averaging of weights leaves it
    content["state_dict"] = {name: value + 1 for name, value in content["state_dict"].items()}
    torch.save(content, tmp_path / "averaged.ckpt")
    loaded = Trained(pomo.model, tmp_path / "averaged.ckpt").opened().load().parameters()
    for name, weights in pomo.model.policy.named_parameters():
        assert torch.equal(loaded[name], weights + 1), name


def test_rewards_are_tour_lengths_and_stand_where_their_start_says(pomo: Trained) -> None:
    opened = pomo.opened()
    subject, batch = opened.load(), opened.instances(3, 5)
    torch.manual_seed(3)
    rewards, log_likelihood = subject.rollout(batch)
    torch.manual_seed(3)
    env = pomo.model.env
    out = pomo.model.policy(env.reset(batch.clone()), env, phase="train", num_starts=NUM_LOC)
    assert rewards.shape == log_likelihood.shape == (3, NUM_LOC)
    for row, place in np.ndindex(3, NUM_LOC):
        tour = out["actions"][place * 3 + row].tolist()
        assert tour[0] == place
        assert sorted(tour) == list(range(NUM_LOC))
        cities = [batch["locs"][row, city].tolist() for city in tour]
        length = sum(math.dist(a, b) for a, b in zip(cities, cities[1:] + cities[:1], strict=True))
        assert rewards[row, place].item() == pytest.approx(-length, rel=1e-5)
        assert log_likelihood[row, place].item() == out["log_likelihood"][place * 3 + row].item()


@pytest.mark.filterwarnings("ignore:You are trying to `self.log\\(\\)` but")
def test_the_gradient_is_that_of_rl4cos_own_training_step(pomo: Trained) -> None:
    from rl4co.models import POMO

    opened, model = (
        pomo.opened(),
        POMO.load_from_checkpoint(pomo.path, load_baseline=False, weights_only=False),
    )
    batch = opened.instances(8, 5)
    torch.manual_seed(7)
    found = gradient_of(
        opened.load(), batch, Recipe(algorithm="pomo", reduction="mean", batch_size=8)
    )
    torch.manual_seed(7)
    loss = model.shared_step(batch.clone(), 0, phase="train")["loss"]
    parameters = list(model.policy.parameters())
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    theirs = [
        torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)
    ]
    flat = torch.cat([each.reshape(-1) for each in theirs])
    assert flat.norm() > 0
    torch.testing.assert_close(found.flat, flat, rtol=1e-4, atol=1e-6)


def test_replicates_run_on_it_and_the_same_seed_gives_the_same_numbers(pomo: Trained) -> None:
    opened = pomo.opened()
    subject = opened.load()
    found = measured(opened, subject)
    again = measured(opened, opened.load())
    other = measured(opened, subject, seed=4321)
    assert json.dumps(found.record) == json.dumps(again.record)
    assert found.record["per_replicate"]["grad_proj"] != other.record["per_replicate"]["grad_proj"]
    for series in found.record["per_replicate"].values():
        assert len(series) == 2
        assert np.isfinite(series).all()
    assert len(set(found.record["per_replicate"]["grad_norm"])) == 2
    config = found.record["config"]
    assert (config["model"], config["policy"], config["problem"]) == (
        "POMO",
        "AttentionModelPolicy",
        "tsp",
    )
    assert (config["num_loc"], config["num_starts"], config["num_instances"]) == (
        NUM_LOC,
        NUM_LOC,
        8,
    )
    assert not opened.iid


def test_loaders_survive_pickling_and_leave_every_random_state_alone(pomo: Trained) -> None:
    torch.manual_seed(11)
    np.random.seed(11)
    random.seed(11)
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    opened = pomo.opened()
    opened.instances(4, 5)
    opened.load_random()
    sent = pickle.loads(pickle.dumps(opened.load))()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (str(np.random.get_state()), random.getstate()) == before[1:]
    one, two = (
        measured(opened, sent, extended=False),
        measured(opened, opened.load(), extended=False),
    )
    assert one.record == two.record


def test_the_random_policy_is_as_large_but_knows_nothing_of_the_trained_one(pomo: Trained) -> None:
    opened = pomo.opened()
    trained, fresh, again = (
        opened.load().parameters(),
        opened.load_random().parameters(),
        opened.load_random().parameters(),
    )
    for name, weights in trained.items():
        assert fresh[name].shape == weights.shape
        assert torch.equal(fresh[name], again[name])
        assert not torch.equal(fresh[name], weights), name
    assert (
        measured(opened, opened.load_random(), extended=False).record["metrics"]["grad_norm_mean"]
        > 0
    )


def test_instances_come_from_the_seed_and_can_be_sliced(pomo: Trained) -> None:
    opened = pomo.opened()
    one, same, other = opened.instances(6, 1), opened.instances(6, 1), opened.instances(6, 2)
    assert len(one) == 6
    assert len(one[2:5]) == 3
    assert one["locs"].shape == (6, NUM_LOC, 2)
    assert torch.equal(one["locs"], same["locs"])
    assert not torch.equal(one["locs"], other["locs"])


def test_the_number_of_starts_can_be_chosen(pomo: Trained) -> None:
    opened = pomo.opened(num_starts=4)
    rewards, _ = opened.load().rollout(opened.instances(3, 5))
    assert rewards.shape == (3, 4)
    assert opened.config["num_starts"] == 4


def test_batch_norm_trains_on_its_batch_and_its_statistics_are_put_back(tmp_path: Path) -> None:
    opened = train(tmp_path, normalization="batch").opened()
    subject = opened.load()
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}  # type: ignore[union-attr]
    assert any("running_mean" in name for name in before)
    measured(opened, subject)
    for name, value in subject.model.state_dict().items():  # type: ignore[union-attr]
        assert torch.equal(value, before[name]), name
    subject.rollout(opened.instances(4, 5))  # and outside of a probe they would have moved
    assert any(not torch.equal(v, before[name]) for name, v in subject.model.state_dict().items())  # type: ignore[union-attr]


def test_a_problem_with_a_depot_starts_at_its_customers(tmp_path: Path) -> None:
    opened = train(tmp_path, problem="cvrp").opened(problem="cvrp")
    assert opened.config["num_starts"] == NUM_LOC
    rewards, log_likelihood = opened.load().rollout(opened.instances(3, 5))
    assert rewards.shape == log_likelihood.shape == (3, NUM_LOC)
    assert (rewards < 0).all()


def test_a_checkpoint_is_not_opened_unless_somebody_trusts_it(pomo: Trained) -> None:
    with pytest.raises(UsageError, match=r"runs whatever is in it.*--trust-checkpoint"):
        pomo.opened(trust=False)


def test_a_checkpoint_that_names_rl4co_and_runs_something_else_runs_nothing(tmp_path: Path) -> None:
    from rl4co.envs import TSPEnv

    path = tmp_path / "some.ckpt"
    torch.save({"env": TSPEnv(), "more": _Trap(tmp_path / "sprung")}, path)
    assert gradiometer(["variance", "--ckpt_path", str(path)]) == 2
    assert not (tmp_path / "sprung").exists()


def test_an_old_torch_is_not_relied_upon(pomo: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(UsageError, match=r"2\.10; pip install -U torch"):
        pomo.opened()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"problem": "cvrp"}, "trained with problem tsp, not cvrp"),
        ({"num_loc": 20}, "trained with num_loc 10, not 20"),
        ({"num_starts": 1}, "num_starts is 2 or more"),
    ],
)
def test_another_problem_than_the_checkpoints_is_refused(
    pomo: Trained, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pomo.opened(**changed)


def test_another_algorithm_than_pomo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="another algorithm than POMO"):
        train(tmp_path, algorithm="SymNCO").opened()


class _Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.folder,)


@pytest.mark.parametrize("content", ["nothing", "text", "weights", "trap", "half"])
def test_a_file_that_is_not_rl4cos_is_refused_and_nothing_in_it_is_run(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "some.ckpt"
    if content == "text":
        path.write_text("hello")
    elif content == "weights":
        torch.save({"state_dict": {"a": torch.zeros(2)}}, path)
    elif content == "trap":
        torch.save({"state_dict": _Trap(tmp_path / "sprung")}, path)
    elif content == "half":
        from rl4co.envs import TSPEnv

        torch.save({"hyper_parameters": {"env": TSPEnv()}}, path)
    with pytest.raises(UsageError, match=r"some\.ckpt (is not|cannot be read as) a checkpoint"):
        open_checkpoint(path, problem="tsp", num_loc=NUM_LOC, device="cpu", trust=content == "half")
    assert not (tmp_path / "sprung").exists()


def test_without_rl4co_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rl4co", None)
    with pytest.raises(MissingExtra, match=r'pip install "gradiometer\[rl4co\]"'):
        open_checkpoint(tmp_path / "some.ckpt", problem="tsp", num_loc=NUM_LOC, device="cpu")


# -- subclasses, and no checkpoint at all


def subclass_checkpoint(folder: Path, trained: Trained, **changed: Any) -> Path:
    """What Lightning writes for a max@K subclass that called save_hyperparameters(ignore=["env",
    "policy"]): plain arguments and weights, nothing of rl4co's objects."""
    content = torch.load(trained.path, weights_only=False)
    hyper = {
        name: value
        for name, value in content["hyper_parameters"].items()
        if name not in ("env", "policy")
    }
    kept = {
        "state_dict": content["state_dict"],
        "hyper_parameters": {**hyper, "k": 4, "maxk_baseline": "subloo", **changed},
        "pytorch-lightning_version": "2.5.0",
        "epoch": 1,
        "global_step": 2,
    }
    path = folder / "maxk.ckpt"
    torch.save(kept, path)
    return path


@pytest.fixture(scope="module")
def maxk(pomo: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return subclass_checkpoint(tmp_path_factory.mktemp("maxk"), pomo)


def cli_record(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    sizes = ["--num_instances", "4", "--num_replicates", "2", "--run", "none", "--no-controls"]
    assert gradiometer(["variance", *arguments, *sizes, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    return dict(record)


def test_a_subclass_that_keeps_neither_environment_nor_policy_opens_with_its_weights(
    maxk: Path, pomo: Trained
) -> None:
    loaded = Trained(pomo.model, maxk).opened(trust=False).load().parameters()
    for name, weights in pomo.model.policy.named_parameters():
        assert torch.equal(loaded[name], weights), name


def test_its_gradient_is_that_of_the_checkpoint_with_all_objects(maxk: Path, pomo: Trained) -> None:
    opened = [pomo.opened(), Trained(pomo.model, maxk).opened()]
    found = [measured(each, each.load()).record["per_replicate"] for each in opened]
    assert found[0] == found[1]


def test_its_own_k_and_baseline_are_measured_and_a_conflict_is_said(
    maxk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--ckpt_path", str(maxk), "--num_loc", str(NUM_LOC), "--algorithm", "maxk_pomo"]
    own = cli_record(capsys, *asked)["config"]
    assert (own["k"], own["baseline"], own["conflicts"]) == (4, "subloo", [])
    other = cli_record(capsys, *asked, "--k", "8")["config"]
    assert other["k"] == 8
    assert any("trained with k=4" in each for each in other["conflicts"])
    plain = cli_record(capsys, *asked[:-1], "pomo")["config"]
    assert any("max@K (k=4)" in each for each in plain["conflicts"])


def test_a_policy_of_none_is_made_of_the_shapes_and_what_they_do_not_say_is_told(
    pomo: Trained, tmp_path: Path
) -> None:
    content = torch.load(pomo.path, weights_only=False)
    content["hyper_parameters"] |= {"policy": None, "policy_kwargs": {}}
    torch.save(content, tmp_path / "none.ckpt")
    opened = Trained(pomo.model, tmp_path / "none.ckpt").opened()
    assert opened.config["assumed"] == ["num_heads=2"]
    assert opened.load().parameters().keys() == dict(pomo.model.policy.named_parameters()).keys()


@pytest.mark.parametrize("problem", ["cvrp", "op", "pctsp"])
def test_other_problems_are_measured_on_an_untrained_policy_of_rl4co(
    problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--ckpt_path", "random", "--problem", problem, "--num_loc", "6", "--save_path", ""]
    record = cli_record(capsys, *asked)
    assert record["config"]["problem"] == problem
    assert record["config"]["save_path"] == ""
    assert record["metrics"]["grad_norm_mean"] > 0.0


def test_a_problem_that_rl4co_does_not_have_is_one_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert gradiometer(["variance", "--ckpt_path", "random", "--problem", "chess"]) == 2
    assert "rl4co has no such environment" in capsys.readouterr().err
