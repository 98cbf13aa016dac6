from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import gradiometer as gm
from gradiometer.errors import RunExists, UsageError
from gradiometer_labs.config import configure
from gradiometer_labs.sokoban import checkpoint
from gradiometer_labs.sokoban.config import Config
from gradiometer_labs.sokoban.train import Result, train

pytestmark = pytest.mark.slow

TINY = (
    "model.hidden_size=32",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.intermediate_size=32",
    "env.max_turns=2",
    "env.max_actions_per_turn=2",
    "warm_start.steps=10",
    "warm_start.batch_size=8",
    "warm_start.num_levels=32",
    "es_manager.train.env_groups=4",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.gradient_analysis_every=1",
    "actor_rollout_ref.rollout.rollout_filter_value=1",
)


def run(*overrides: str) -> Result:
    return train(configure(Config, [*TINY, *overrides]))


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def resumed_from(folder: Path) -> tuple[str, str]:
    return "trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}"


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_resumed_training_goes_on_as_if_it_had_never_stopped(
    tmp_path: Path, estimator: str
) -> None:
    shared = (f"algorithm.adv_estimator={estimator}", f"trainer.default_local_dir={tmp_path}")
    whole = run(*shared, "trainer.total_training_steps=4", "trainer.save_freq=2")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["global_step_2", "global_step_4"]
    assert whole.checkpoint == tmp_path / "global_step_4"
    rest = run(*shared, *resumed_from(tmp_path / "global_step_2"), "trainer.total_training_steps=4")
    assert torch.equal(weights(whole.model), weights(rest.model))
    assert list(rest.analyses) == [3, 4]
    for step in (3, 4):
        assert rest.analyses[step].metrics == whole.analyses[step].metrics
        assert rest.analyses[step].tables == whole.analyses[step].tables


def test_a_probe_of_a_checkpoint_equals_the_probe_in_the_training(tmp_path: Path) -> None:
    whole = run(
        f"trainer.default_local_dir={tmp_path}",
        "trainer.total_training_steps=3",
        "trainer.save_freq=1",
    )
    probe = run(
        *resumed_from(tmp_path / "global_step_2"),
        "trainer.total_training_steps=3",
        "trainer.exit_after_gradient_analysis=true",
    )
    assert probe.exited_after_analysis
    assert probe.steps == 2
    assert probe.analyses[3].metrics == whole.analyses[3].metrics


def test_auto_takes_the_newest_checkpoint_and_starts_afresh_without_one(tmp_path: Path) -> None:
    shared = (
        f"trainer.default_local_dir={tmp_path}",
        "trainer.resume_mode=auto",
        "trainer.save_freq=1",
    )
    first = run(*shared, "trainer.total_training_steps=1")
    assert list(first.analyses) == [1]
    second = run(*shared, "trainer.total_training_steps=3")
    assert list(second.analyses) == [2, 3]
    assert checkpoint.newest(tmp_path) == tmp_path / "global_step_3"
    with pytest.raises(UsageError, match="leaves nothing to do: use 4 or more"):
        run(*shared, "trainer.total_training_steps=3")


def test_a_run_that_goes_on_keeps_one_axis(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(f"run={folder}", "trainer.total_training_steps=2", "trainer.save_freq=2", "every=1")
    newest = checkpoint.newest(folder / "checkpoints")
    assert newest is not None
    run(f"run={folder}", *resumed_from(newest), "trainer.total_training_steps=3", "every=1")
    with gm.load(folder) as kept:
        assert kept.series("reward")[0].tolist() == [1, 2, 3]
        assert kept.series("grad_norm/all/task")[0].tolist() == [1, 2, 3]


def test_every_file_of_a_checkpoint_is_data_and_the_actor_is_a_model_path(tmp_path: Path) -> None:
    shared = (f"trainer.default_local_dir={tmp_path}", "trainer.total_training_steps=1")
    trained = run(*shared, "trainer.save_freq=1")
    folder = tmp_path / "global_step_1"
    for file in folder.rglob("*"):
        if file.suffix == ".pt":
            assert torch.load(file, weights_only=True)
        elif file.suffix == ".safetensors":
            assert load_file(file)
        elif file.is_file():
            assert file.suffix in {".json", ".jinja"}
    assert json.loads((folder / "config.json").read_text())["model"]["hidden_size"] == 32
    probe = run(
        f"model_path={folder / 'actor'}",
        "trainer.total_training_steps=1",
        "trainer.exit_after_gradient_analysis=true",
    )
    assert torch.equal(weights(probe.model), weights(trained.model))
    assert (
        probe.tokenizer.tokenize("####\n#PX#")
        == trained.tokenizer.tokenize("####\n#PX#")
        == ["##", "##", "#P", "X#"]
    )


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("model.hidden_size=48", "model.hidden_size=32, not 48"),
        ("model.num_layers=2", "model.num_layers=1, not 2"),
        ("model.intermediate_size=64", "model.intermediate_size=32, not 64"),
    ],
)
def test_a_checkpoint_of_another_shape_is_one_error_that_says_what_differs(
    tmp_path: Path, override: str, difference: str
) -> None:
    run(
        f"trainer.default_local_dir={tmp_path}",
        "trainer.total_training_steps=1",
        "trainer.save_freq=1",
    )
    with pytest.raises(UsageError, match=f"another model than this config makes: {difference}"):
        run(*resumed_from(tmp_path / "global_step_1"), override, "trainer.total_training_steps=2")


def test_a_folder_that_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a checkpoint"):
        run(*resumed_from(tmp_path / "global_step_7"), "trainer.total_training_steps=8")
    (tmp_path / "global_step_7").mkdir()
    with pytest.raises(UsageError, match=r"not a whole checkpoint: .*training\.pt.* missing"):
        run(*resumed_from(tmp_path / "global_step_7"), "trainer.total_training_steps=8")


def test_grpo_has_no_critic_that_gae_could_go_on_with(tmp_path: Path) -> None:
    shared = (f"trainer.default_local_dir={tmp_path}", "trainer.save_freq=1")
    run(*shared, "algorithm.adv_estimator=grpo", "trainer.total_training_steps=1")
    with pytest.raises(UsageError, match="has no critic"):
        run(*shared, *resumed_from(tmp_path / "global_step_1"), "trainer.total_training_steps=2")


def test_an_analysis_never_cuts_the_run_it_is_pointed_at(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(f"run={folder}", "trainer.total_training_steps=3", "trainer.save_freq=1")
    before = (folder / "run.db").read_bytes()
    probe = (
        *resumed_from(folder / "checkpoints" / "global_step_1"),
        "trainer.exit_after_gradient_analysis=true",
    )
    with pytest.raises(RunExists, match="already holds"):
        run(f"run={folder}", *probe, "trainer.total_training_steps=2")
    assert (folder / "run.db").read_bytes() == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(
        f"trainer.default_local_dir={folder}",
        "trainer.total_training_steps=1",
        "trainer.save_freq=1",
    )
    return folder / "global_step_1"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def saved(content: object) -> Callable[[Path], None]:
    return lambda file: torch.save(content, file)


def without_the_meter(file: Path) -> None:
    torch.save({"optimizers": torch.load(file, weights_only=True)["optimizers"]}, file)


def with_a_past_of_another_shape(file: Path) -> None:
    content = torch.load(file, weights_only=True)
    content["optimizers"]["critic"]["state"][0]["exp_avg"] = torch.zeros(3, 3)
    torch.save(content, file)


def of_another_shape(file: Path) -> None:
    if file.suffix == ".pt":
        torch.save({name: torch.zeros(7, 5) for name in torch.load(file, weights_only=True)}, file)
    else:
        save_file({name: torch.zeros(7, 5) for name in load_file(file)}, file)


def text(content: str) -> Callable[[Path], None]:
    return lambda file: file.write_text(content) and None


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        *((name, cut) for name in ("training.pt", "critic.pt", "config.json")),
        *(
            (f"{part}/model.safetensors", harm)
            for part in ("actor", "reference")
            for harm in (cut, emptied)
        ),
        *((name, emptied) for name in ("training.pt", "critic.pt", "config.json")),
        *(
            ("training.pt", saved(each))
            for each in ({}, [], {"optimizers": {}}, {"optimizers": {"actor": {}}})
        ),
        ("training.pt", without_the_meter),
        ("training.pt", with_a_past_of_another_shape),
        ("critic.pt", saved({})),
        ("critic.pt", saved([1])),
        ("critic.pt", saved({"head.weight": 3})),
        ("critic.pt", of_another_shape),
        ("reference/model.safetensors", of_another_shape),
        ("config.json", text("[]")),
        ("config.json", text("[" * 100_000)),
    ],
)
def test_a_damaged_file_is_one_error_that_names_it(
    whole: Path, tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(whole, tmp_path / "global_step_1")
    harm(folder / name)
    told = name if harm is not of_another_shape else name.removesuffix("/model.safetensors")
    with pytest.raises(
        UsageError, match=r"damaged or of another training .*: use an earlier checkpoint"
    ) as caught:
        run(*resumed_from(folder), "trainer.total_training_steps=2")
    assert str(folder / told) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_config_without_a_key_is_told_only_when_the_weights_differ(
    whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "global_step_1")
    (folder / "config.json").write_text("{}")
    with pytest.raises(
        UsageError, match=r"another model than this config makes: model\.hidden_size=None, not 48"
    ):
        run(*resumed_from(folder), "model.hidden_size=48", "trainer.total_training_steps=2")
