"""The Hugging Face Trainer as it is, on a tiny language model, with and without the callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forkserver import python
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import gradiometer as gm
from gradiometer.errors import RunExists, UnknownName
from gradiometer.integrations.transformers import GradiometerCallback

pytestmark = pytest.mark.slow

TIMES = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "eval_runtime"}
TIMES |= {"eval_samples_per_second", "eval_steps_per_second"}


class Sentences(Dataset[dict[str, Tensor]]):
    """Sequences in which each token follows from the one before."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (index + 3 * torch.arange(8)) % 11
        return {"input_ids": tokens, "labels": tokens}


class Raises(TrainerCallback):
    """A training that dies at its third step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            raise OSError("the disk is gone")


def make(*callbacks: Any, **settings: Any) -> Trainer:
    given = {
        "output_dir": "out",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "max_grad_norm": 0.3,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=2, n_head=2)
    )  # with dropout
    arguments = TrainingArguments(**{**given, **settings})
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=Sentences(),
        eval_dataset=Sentences(),
        callbacks=list(callbacks),
    )


def watching(run: str | None = "run", **options: Any) -> GradiometerCallback:
    return GradiometerCallback(run=run, **{"budget": None, **options})


def raw(run: str = "run") -> tuple[list[int], np.ndarray[Any, Any]]:
    steps, norms = gm.load(run).series("grad/all/norm/raw")
    return steps.tolist(), norms


def history(trainer: Trainer) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in trainer.state.log_history]


@pytest.mark.parametrize(
    "settings", [{}, {"bf16": True}, {"eval_strategy": "steps", "eval_steps": 2}]
)
def test_the_trained_weights_are_the_same_bits(settings: dict[str, Any]) -> None:
    plain = make(max_steps=12, **settings)
    plain.train()
    watched = make(watching(tier="deep"), max_steps=12, **settings)
    watched.train()

    pairs = zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert history(plain) == history(watched)
    assert raw()[0] == list(range(1, 13))


@pytest.mark.parametrize(("bf16", "accumulation"), [(False, 1), (False, 3), (True, 2)])
def test_the_raw_norm_is_the_norm_the_trainer_logs(bf16: bool, accumulation: int) -> None:
    trainer = make(watching(), bf16=bf16, gradient_accumulation_steps=accumulation)
    trainer.train()

    run, logged = gm.load("run"), trainer.state.log_history[:4]
    steps, norms = raw()
    assert steps == [row["step"] for row in logged] == [1, 2, 3, 4]
    np.testing.assert_allclose(norms, [row["grad_norm"] for row in logged], rtol=1e-5)
    np.testing.assert_allclose(
        run.series("grad/all/norm/clipped")[1], np.minimum(norms, 0.3), rtol=1e-4
    )
    assert norms.max() > 0.3
    for name in ("loss", "grad_norm", "learning_rate", "epoch"):
        steps, values = run.series(name)
        assert steps.tolist() == [1, 2, 3, 4]
        assert values.tolist() == [row[name] for row in logged]
    assert run.series("optimizer/0/lr")[1] == pytest.approx(run.series("learning_rate")[1])
    parts = set(run.series("meter/micro_batches")[1]) if accumulation > 1 else set()
    assert parts <= {float(accumulation)}
    assert not run.events()


def test_without_a_clip_the_norm_is_the_trainers_still() -> None:
    trainer = make(watching(), max_grad_norm=0.0)
    trainer.train()

    run = gm.load("run")
    np.testing.assert_allclose(
        raw()[1], [row["grad_norm"] for row in trainer.state.log_history[:4]], rtol=1e-5
    )
    assert set(run.series("grad/all/clip/threshold")[1]) == {
        np.inf
    }  # how transformers takes a norm
    assert set(run.series("grad/all/clip/active")[1]) == {0.0}
    np.testing.assert_allclose(run.series("grad/all/norm/clipped")[1], raw()[1], rtol=1e-6)


def test_evaluations_stand_at_the_step_after_which_they_were_made() -> None:
    trainer = make(watching(), eval_strategy="steps", eval_steps=2)
    trainer.train()

    steps, losses = gm.load("run").series("eval_loss")
    assert steps.tolist() == [2, 4]
    assert losses.tolist() == [
        row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row
    ]


def test_the_settings_of_the_trainer_are_kept_and_those_of_the_user_win() -> None:
    make(watching(config={"learning_rate": "mine"}, seed=5)).train()

    facts = gm.load("run").facts
    assert facts["config"]["trainer"] == "Trainer"
    assert facts["config"]["learning_rate"] == "mine"
    assert facts["config"]["gradient_accumulation_steps"] == 2
    assert facts["seed"] == 5
    assert facts["meter"]["micro_batch_size"] == 2


# Fresh is above. Resumed:


def test_a_training_resumed_by_a_new_trainer_goes_on_in_the_same_run() -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    make(watching(), **saving).train()
    whole = raw()
    resumed = make(
        watching(overwrite=True), **saving
    )  # a script that always overwrites goes on all the same
    resumed.train(resume_from_checkpoint="out/checkpoint-2")

    assert raw()[0] == [1, 2, 3, 4]
    np.testing.assert_allclose(raw()[1], whole[1], rtol=1e-5)
    run = gm.load("run")
    assert [(event.kind, event.step) for event in run.events()] == [("resumed", 2)]
    assert run.series("loss")[0].tolist() == [1, 2, 3, 4]


def test_the_same_trainer_goes_back_to_a_checkpoint() -> None:
    trainer = make(watching(), Raises(), save_strategy="steps", save_steps=1)
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.train()
    trainer.pop_callback(Raises)
    trainer.train(resume_from_checkpoint="out/checkpoint-1")

    assert raw()[0] == [1, 2, 3, 4]
    assert [event.step for event in gm.load("run").events("resumed")] == [1]
    assert not gm.load("run").events("exception")  # it was of step 2, which is gone


def test_a_resumed_training_without_its_run_begins_one_at_its_step() -> None:
    make(save_strategy="steps", save_steps=2).train()
    make(watching()).train(resume_from_checkpoint="out/checkpoint-2")

    assert raw()[0] == [3, 4]


def test_resume_may_be_given_by_hand() -> None:
    make(watching(), save_strategy="steps", save_steps=2).train()
    make(watching(resume=1)).train(resume_from_checkpoint="out/checkpoint-2")

    assert raw()[0] == [1, 2, 3]  # what the user says is what is done


# Raising:


def test_an_exception_is_kept_with_the_run_and_raised() -> None:
    trainer = make(watching(), Raises())
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.train()

    run = gm.load("run")
    assert [(e.step, e.message) for e in run.events("exception")] == [
        (2, "OSError: the disk is gone")
    ]
    assert raw()[0] == [1, 2]
    assert not Path("run/run.db-wal").exists()


def test_a_callback_that_came_late_is_closed_by_its_with() -> None:
    trainer, callback = make(Raises()), watching()
    trainer.add_callback(callback)
    with pytest.raises(OSError, match="the disk is gone"), callback:
        trainer.train()

    assert [event.message for event in gm.load("run").events("exception")] == [
        "OSError: the disk is gone"
    ]


LATE = """
from test_transformers import Raises, make, watching
trainer = make(Raises())
trainer.add_callback(watching())
trainer.train()
"""


def test_a_callback_that_came_late_is_closed_at_the_end_of_the_process() -> None:
    here, above = str(Path(__file__).parent), str(Path(__file__).parents[1])
    found = f"import sys; sys.path[:0] = [{here!r}, {above!r}]"
    done = python("-c", f"{found}\n{LATE}")

    assert done.returncode == 1
    assert "the disk is gone" in done.stderr
    messages = [event.message for event in gm.load("run").events("exception")]
    assert len(messages) == 1
    assert "the disk is gone" in messages[0]


# Twice:


def test_two_trainings_in_one_process() -> None:
    for name in ("first", "second"):
        make(watching(name)).train()
    assert raw("first")[0] == raw("second")[0] == [1, 2, 3, 4]
    assert raw("first")[1].tolist() == raw("second")[1].tolist()
    with pytest.raises(RunExists):
        make(watching("second")).train()


def test_training_again_goes_on_after_the_last_step() -> None:
    trainer = make(watching())
    trainer.train()
    trainer.train()

    assert raw()[0] == list(range(1, 9))
    assert gm.load("run").series("loss")[0].tolist() == list(range(1, 9))


def test_a_batch_that_did_not_fit_is_an_exception_and_the_smaller_one_goes_on() -> None:
    class Full(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.train_batch_size == 4 and state.global_step == 1:
                raise RuntimeError("CUDA out of memory.")

    make(watching(), Full(), auto_find_batch_size=True, per_device_train_batch_size=4).train()

    run = gm.load("run")
    assert [event.kind for event in run.events()] == ["exception", "resumed"]
    assert raw()[0] == [1, 2, 3, 4, 5]


def test_no_run_keeps_nothing_and_a_disabled_callback_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    callback = watching(None)
    make(callback).train()
    assert callback.session.meter is not None
    assert callback.session.meter.gradient_health().step == 4
    monkeypatch.setenv("GRADIOMETER_DISABLED", "1")
    make(watching()).train()
    assert sorted(path.name for path in Path().iterdir()) in ([], ["out"])


def test_a_wrong_option_is_refused_at_once() -> None:
    with pytest.raises(UnknownName, match="did you mean 'every'"):
        watching(evry=2)
