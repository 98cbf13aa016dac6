"""The callback against Stable-Baselines3 itself: five algorithms, short trainings, SB3's own files
as the oracle."""

from __future__ import annotations

import csv
import gc
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forkserver import python
from torch import nn

import gradiometer as gm
from gradiometer.capture import hooks
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.errors import GradiometerWarning, MissingExtra, RunExists, UnknownName

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("stable_baselines3") is None, reason="SB3 is not installed"
    ),
]

SMALL = {"net_arch": [8]}
OFF_POLICY = {"learning_starts": 20, "batch_size": 8, "buffer_size": 200}
ALGORITHMS: dict[str, tuple[str, dict[str, Any], int]] = {
    "PPO": ("CartPole-v1", {"n_steps": 32, "batch_size": 16, "n_epochs": 2}, 96),
    "A2C": ("Pendulum-v1", {"n_steps": 8}, 64),
    "DQN": ("CartPole-v1", {**OFF_POLICY, "target_update_interval": 30}, 80),
    "SAC": ("Pendulum-v1", OFF_POLICY, 40),
    "TD3": ("Pendulum-v1", OFF_POLICY, 40),
}


def made(algorithm: str, **changed: Any) -> Any:
    import stable_baselines3

    env, settings, _ = ALGORITHMS[algorithm]
    settings = {"policy_kwargs": dict(SMALL), "seed": 0, "device": "cpu", **settings, **changed}
    return getattr(stable_baselines3, algorithm)("MlpPolicy", env, **settings)


def callback(run: Any, **options: Any) -> Any:
    from gradiometer.integrations.sb3 import GradiometerCallback

    return GradiometerCallback(run=run, **{"budget": None, **options})


def learn(algorithm: str, given: Any = None, **options: Any) -> Any:
    return made(algorithm).learn(ALGORITHMS[algorithm][2], callback=given, **options)


def state_of(model: Any) -> dict[str, Any]:
    """Weights, gradients, the optimizers' memories, and where the random streams stand."""
    named = dict(model.policy.named_parameters())
    if getattr(model, "log_ent_coef", None) is not None:
        named["log_ent_coef"] = model.log_ent_coef
    optimizers = [model.policy, getattr(model, "actor", None), getattr(model, "critic", None)]
    memories = [
        part.optimizer.state_dict()["state"] for part in optimizers if hasattr(part, "optimizer")
    ]
    return {
        **{name: p.detach() for name, p in named.items()},
        **{f"{name}.grad": p.grad for name, p in named.items() if p.grad is not None},
        **{
            f"memory {i} {j} {k}": x
            for i, one in enumerate(memories)
            for j, kept in one.items()
            for k, x in kept.items()
        },
        "torch": torch.get_rng_state(),
        "numpy": torch.tensor(np.random.random()),
    }


QS = {"current_q_values-0", "current_q_values-1"}
TERMS = {
    "PPO": {"policy_loss", "value_loss", "entropy_loss"},
    "A2C": {"policy_loss", "value_loss", "entropy_loss"},
    "DQN": {"loss"},
    "SAC": {*QS, "ent_coef_loss", "log_prob", "min_qf_pi"},
    "TD3": {*QS, "actor_loss"},
}
"""As the variables of Stable-Baselines3 are called."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_terms_of_the_loss_are_read_off_its_graph(algorithm: str, tmp_path: Path) -> None:
    options = {"ent_coef": 0.01} if algorithm in ("PPO", "A2C") else {}
    model = made(algorithm, **options)
    model.learn(ALGORITHMS[algorithm][2], callback=callback(tmp_path / "run"))
    run = gm.load(tmp_path / "run")
    rows = {row["name"]: row for row in run.tables("wiring")[-1].content["terms"]}
    assert set(rows) == TERMS[algorithm]
    assert all(row["alive"] for row in rows.values())
    names = run.names()
    if algorithm == "DQN":
        assert not any("/term/" in name for name in names)
        return
    assert {f"grad/all/term/{name}/norm" for name in rows} <= set(names)
    assert (run.series("grad/all/term/additivity_error")[1] < 1e-5).all()
    if "policy_loss" in rows:
        assert rows["policy_loss"]["reaches"] == ["all", "actor"]
        assert rows["value_loss"]["reaches"] == ["all", "critic"]
        assert rows["entropy_loss"]["coefficient"] == pytest.approx(0.01)
        assert rows["value_loss"]["coefficient"] == pytest.approx(0.5)
    else:
        assert all(rows[name]["reaches"] == ["all", "critic"] for name in QS)
    assert not run.events("dead-term")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_training_is_the_same_bits_with_and_without_the_callback(
    algorithm: str, tmp_path: Path
) -> None:
    bare = state_of(learn(algorithm))
    watched = state_of(learn(algorithm, callback(tmp_path / "run", tier="deep")))
    assert bare.keys() == watched.keys()
    assert all(torch.equal(x, watched[name]) for name, x in bare.items())
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    assert len(run.series("grad/all/norm/raw")[0]) >= 8


@pytest.mark.parametrize(
    ("algorithm", "sizes"),
    [
        ("PPO", {"actor": 4, "critic": 4}),
        ("A2C", {"actor": 5, "critic": 4}),
        ("DQN", {"critic": 4, "target": 4}),
        ("SAC", {"actor": 6, "critic": 8, "target": 8, "ent_coef": 1}),
        ("TD3", {"actor": 4, "critic": 8, "target": 12}),
    ],
)
def test_actor_critic_and_targets_are_found(algorithm: str, sizes: dict[str, int]) -> None:
    given = callback(None)
    learn(algorithm, given)
    blocks = given.meter.blocks
    named = dict(zip(blocks.names[: blocks.num_named], map(len, blocks.members), strict=False))
    assert named == {"all": sum(sizes.values()), **sizes}
    states = given.meter.states
    assert {name for name, state in states.items() if state == "frozen"} == {
        n for n in states if "_target." in n
    }
    assert "missing" not in states.values()


def test_targets_are_nothing_a_doctor_complains_about(tmp_path: Path) -> None:
    learn("SAC", callback(tmp_path / "run"))
    run = gm.load(tmp_path / "run")
    assert not run.events("missing")
    assert all(check["state"] == "ok" for check in run.table("audit").content["checks"])
    assert not [
        found
        for found in diagnose(run).findings
        if found.block == "target" or found.basis == "proved"
    ]


@pytest.mark.parametrize("shared", [True, False])
def test_a_features_extractor_is_the_trunk_where_it_is_shared(shared: bool) -> None:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Extractor(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, 6)
            self.layer = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(x))

    kwargs = {"features_extractor_class": Extractor, "share_features_extractor": shared, **SMALL}
    given = callback(None)
    made("PPO", policy_kwargs=kwargs).learn(32, callback=given)
    blocks = given.meter.blocks
    named = dict(zip(blocks.names[: blocks.num_named], map(len, blocks.members), strict=False))
    assert named == (
        {"all": 10, "trunk": 2, "actor": 4, "critic": 4}
        if shared
        else {"all": 12, "actor": 6, "critic": 6}
    )


def norm(parameters: Any) -> float:
    return float(torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm())


def test_raw_and_clipped_gradients_of_ppo_are_those_around_its_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, raw, clipped = made("PPO", max_grad_norm=0.05), [], []
    honest = torch.nn.utils.clip_grad_norm_

    def noting(parameters: Any, *args: Any) -> Any:
        raw.append(norm(listed := list(parameters)))
        return honest(listed, *args)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", noting)
    model.policy.optimizer.register_step_pre_hook(
        lambda *_: clipped.append(norm(model.policy.parameters()))
    )
    model.learn(96, callback=callback(tmp_path / "run"))
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == list(range(12))
    assert run.series("grad/all/norm/raw")[1] == pytest.approx(raw, rel=1e-5)
    assert run.series("grad/all/norm/clipped")[1] == pytest.approx(clipped, rel=1e-5)
    assert max(clipped) < 0.051 < min(raw)


@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_each_network_has_the_gradient_its_own_optimizer_saw(
    algorithm: str, tmp_path: Path
) -> None:
    model, seen = made(algorithm), {"actor": [], "critic": []}

    def note(part: str) -> Callable[..., None]:
        return lambda *_: seen[part].append(norm(getattr(model, part).parameters()))

    for part in seen:
        getattr(model, part).optimizer.register_step_pre_hook(note(part))
    model.learn(40, callback=callback(tmp_path / "run"))
    run = gm.load(tmp_path / "run")
    assert len(seen["critic"]) == 20
    for part, norms in seen.items():
        assert run.series(f"grad/{part}/norm/raw")[1] == pytest.approx(norms, rel=1e-5)
    steps = run.series("grad/actor/norm/raw")[0].tolist()
    assert steps == (list(range(20)) if algorithm == "SAC" else list(range(1, 20, 2)))


def csv_columns(folder: Path) -> dict[str, list[float]]:
    with (folder / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_what_sb3_logs_is_read_once_over_two_trainings_with_one_logger(
    algorithm: str, tmp_path: Path
) -> None:
    from stable_baselines3.common.logger import configure

    model, given = made(algorithm), callback(tmp_path / "run")
    model.set_logger(configure(str(tmp_path), ["csv"]))
    outputs = list(model.logger.output_formats)
    length = ALGORITHMS[algorithm][2]
    model.learn(length, callback=given, log_interval=1)
    model.learn(length, callback=given, log_interval=1, reset_num_timesteps=False)
    assert model.logger.output_formats == outputs
    model.logger.close()
    run, logged = gm.load(tmp_path / "run"), csv_columns(tmp_path)
    assert (
        {"rollout/ep_rew_mean", "train/loss", "time/total_timesteps"}
        <= logged.keys()
        <= set(run.names())
    )
    steps, counts = run.series("train/n_updates")
    rest = steps[
        ~np.isin(counts, logged["train/n_updates"])
    ]  # at the end of a training, where SB3 dumps nothing
    assert len(rest) == (1 if algorithm == "PPO" else 2)
    for name, values in logged.items():
        steps, kept = run.series(name)
        assert kept[
            ~np.isin(steps, rest) | (not name.startswith("train/"))
        ].tolist() == pytest.approx(values, rel=1e-5)
    assert run.series("train/n_updates")[1][-1] == model._n_updates


def test_steps_lie_at_their_env_steps_rollouts_and_epochs(tmp_path: Path) -> None:
    learn("PPO", callback(tmp_path / "run"))
    where = gm.load(tmp_path / "run").steps()
    assert where["step"].tolist() == list(range(12))
    assert where["env_steps"].tolist() == [32.0] * 4 + [64.0] * 4 + [96.0] * 4
    assert where["rollout"].tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert where["epoch"].tolist() == [0.0, 0.0, 1.0, 1.0] * 3


def test_rewards_lie_at_the_env_steps_at_which_sb3_logged_them(tmp_path: Path) -> None:
    learn("DQN", callback(tmp_path / "run", every=7), log_interval=1)
    run = gm.load(tmp_path / "run")
    steps, totals = run.series("time/total_timesteps")
    assert len(steps) >= 3
    after = totals > ALGORITHMS["DQN"][1]["learning_starts"] + 4
    assert run.where("env_steps", steps[after]) == pytest.approx(totals[after], abs=4)


def test_the_distance_to_the_target_falls_back_at_its_update(tmp_path: Path) -> None:
    learn("DQN", callback(tmp_path / "run"), log_interval=1)
    values = gm.load(tmp_path / "run").series("target_distance")[1]
    assert values.max() > 0
    assert (np.diff(values) > 0).any()
    assert (np.diff(values) < 0).any()


def test_the_settings_of_the_algorithm_are_kept_and_the_users_own_beside_them(
    tmp_path: Path,
) -> None:
    learn("PPO", callback(tmp_path / "run", config={"note": "mine", "gamma": "told"}))
    facts = gm.load(tmp_path / "run").facts
    assert facts["seed"] == 0
    found = facts["config"]
    assert found["algorithm"] == "PPO"
    assert (found["n_steps"], found["clip_range"], found["learning_rate"]) == (32, 0.2, 0.0003)
    assert (found["note"], found["gamma"]) == ("mine", "told")


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_the_callback_lives_in_a_list_with_evaluation_and_a_progress_bar(tmp_path: Path) -> None:
    import gymnasium
    from stable_baselines3.common.callbacks import CallbackList, EvalCallback
    from stable_baselines3.common.monitor import Monitor

    evaluation = EvalCallback(
        Monitor(gymnasium.make("CartPole-v1")), eval_freq=40, n_eval_episodes=1, verbose=0
    )
    learn("PPO", CallbackList([evaluation, callback(tmp_path / "run")]), progress_bar=True)
    run = gm.load(tmp_path / "run")
    assert len(run.series("eval/mean_reward")[0]) == 2
    assert run.newest_step == 11


# The matrix: fresh (above), resumed, an exception, two trainings in one process.


def test_learning_on_goes_on_with_the_run(tmp_path: Path) -> None:
    model, given = made("PPO"), callback(tmp_path / "run")
    model.learn(64, callback=given)
    model.learn(32, callback=given, reset_num_timesteps=False)
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == list(range(12))
    assert run.steps()["env_steps"][-1] == 96
    assert run.steps()["rollout"].tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert [event.kind for event in run.events()] == ["resumed"]
    assert len(run.series("grad/all/cos_prev")[0]) >= 10


def test_a_saved_model_goes_on_in_another_process_with_resume(tmp_path: Path) -> None:
    from stable_baselines3 import PPO

    model = made("PPO")
    model.learn(64, callback=callback(tmp_path / "run"))
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=model.get_env(), device="cpu")
    with pytest.raises(RunExists):
        loaded.learn(32, callback=callback(tmp_path / "run"), reset_num_timesteps=False)
    loaded.learn(32, callback=callback(tmp_path / "run", resume=3), reset_num_timesteps=False)
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == list(range(8))
    assert run.steps()["env_steps"].tolist() == [32.0] * 4 + [96.0] * 4
    assert run.steps()["rollout"].tolist() == [0.0] * 4 + [2.0] * 4


def failing_at(step: int) -> Any:
    from stable_baselines3.common.callbacks import BaseCallback

    class Failing(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == step:
                raise RuntimeError("the environment fell over")
            return True

    return Failing()


def test_with_the_callback_an_exception_is_an_event_and_the_run_is_closed(tmp_path: Path) -> None:
    given = callback(tmp_path / "run")
    with pytest.raises(RuntimeError, match="fell over"), given:
        learn("PPO", [given, failing_at(80)])
    (event,) = gm.load(tmp_path / "run").events()
    assert (event.kind, event.message) == ("exception", "RuntimeError: the environment fell over")
    assert given.session.open is None
    assert hooks._clip_listeners == []


def test_without_it_a_lost_callback_closes_its_run(tmp_path: Path) -> None:
    model = made("PPO")
    with pytest.raises(RuntimeError, match="fell over"):
        model.learn(96, callback=[callback(tmp_path / "run"), failing_at(80)])
    gc.collect()
    (event,) = gm.load(tmp_path / "run").events("exception")
    assert "without a word" in event.message
    assert hooks._clip_listeners == []
    assert not model.policy.optimizer._optimizer_step_pre_hooks
    assert not [one for one in model.logger.output_formats if type(one).__name__ == "_Reader"]
    model.learn(32)  # nothing is left that would fail


@pytest.mark.parametrize("the_same", [True, False])
def test_a_training_after_an_exception_takes_the_run_over(the_same: bool, tmp_path: Path) -> None:
    """As in a notebook, where the exception and its frames stay alive."""
    given, model = callback(tmp_path / "run"), made("PPO")
    with pytest.raises(RuntimeError) as kept:
        model.learn(96, callback=[given, failing_at(80)])
    again = given if the_same else callback(tmp_path / "run", resume=7)
    model.learn(32, callback=again, reset_num_timesteps=False)
    assert kept.value
    run = gm.load(tmp_path / "run")
    assert sorted(event.kind for event in run.events()) == ["exception", "resumed"]
    assert run.series("grad/all/norm/raw")[0].tolist() == list(range(12))
    assert hooks._clip_listeners == []


def test_a_process_that_dies_of_an_exception_leaves_its_name(tmp_path: Path) -> None:
    script = """
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from gradiometer.integrations.sb3 import GradiometerCallback
class Failing(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 50:
            raise RuntimeError("out of luck")
        return True
PPO("MlpPolicy", "CartPole-v1", n_steps=32, n_epochs=1, batch_size=16, device="cpu").learn(
    96, callback=[GradiometerCallback(run="run", budget=None), Failing()])
"""
    done = python("-W", "error", "-c", script, cwd=tmp_path)
    assert done.returncode == 1
    *_, error, ours = done.stderr.splitlines()
    assert error == "RuntimeError: out of luck", done.stderr
    assert ours == "gradiometer: measured 2 of 2 steps. next: gradiometer doctor run"
    (event,) = gm.load(tmp_path / "run").events()
    assert event.kind == "exception"
    assert "out of luck" in event.message
    assert not list((tmp_path / "run").glob("*-wal"))


def test_two_trainings_in_one_process_keep_a_run_each(tmp_path: Path) -> None:
    for name in ("first", "second"):
        learn("PPO", callback(tmp_path / name))
    first, second = gm.load(tmp_path / "first"), gm.load(tmp_path / "second")
    assert first.names() == second.names()
    for name in ("grad/actor/norm/raw", "train/loss"):
        assert first.series(name)[1].tolist() == second.series(name)[1].tolist()
    assert hooks._clip_listeners == []


def test_one_callback_for_two_models_is_refused_where_it_names_a_folder(tmp_path: Path) -> None:
    given = callback(tmp_path / "run")
    learn("PPO", given)
    with pytest.raises(RunExists):
        learn("PPO", given)


def test_saving_a_model_does_not_save_the_meter(tmp_path: Path) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import CheckpointCallback

    model, given = made("PPO"), callback(tmp_path / "run", tier="light")
    model.callback = given
    model.learn(64, callback=[given, CheckpointCallback(40, str(tmp_path), "saved")])
    loaded = PPO.load(tmp_path / "saved_40_steps", env=model.get_env(), device="cpu")
    assert loaded.callback.session.options == given.session.options
    assert loaded.callback.meter is None
    assert all(not one.events("fault") for one in [gm.load(tmp_path / "run")])


def test_trouble_in_reading_the_logger_never_stops_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradiometer.integrations import sb3

    monkeypatch.setattr(sb3, "_is_number", lambda _: 1 / 0)
    with pytest.warns(GradiometerWarning, match="stopped measuring"):
        model = learn("PPO", callback(tmp_path / "run"))
    assert model.num_timesteps == 96
    assert "ZeroDivisionError" in gm.load(tmp_path / "run").events("fault")[0].message


def test_what_is_no_number_is_left_alone(tmp_path: Path) -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    class Wordy(BaseCallback):
        def _on_rollout_end(self) -> None:
            self.logger.record("note", "a word")
            self.logger.record("numpy", np.float32(0.5))

        def _on_step(self) -> bool:
            return True

    learn("PPO", [callback(tmp_path / "run"), Wordy()])
    run = gm.load(tmp_path / "run")
    assert "note" not in run.names()
    assert run.series("numpy")[1].tolist() == [0.5] * 3


def test_the_switch_turns_it_into_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIOMETER_DISABLED", "1")
    model, given = made("DQN"), callback(tmp_path / "run")
    for _ in range(2):
        model.learn(60, callback=given, log_interval=1)
    assert not (tmp_path / "run").exists()


def test_a_wrong_option_is_told_before_anything_runs() -> None:
    with pytest.raises(UnknownName, match="did you mean 'tier'"):
        callback(None, teir="deep")


def test_without_sb3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    for name in [name for name in sys.modules if name.startswith("stable_baselines3.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "gradiometer.integrations.sb3", raising=False)
    with pytest.raises(MissingExtra, match=r'pip install "gradiometer\[sb3\]"'):
        importlib.import_module("gradiometer.integrations.sb3")
