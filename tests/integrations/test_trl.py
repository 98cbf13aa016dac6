"""TRL's trainers as they are, on a tiny model of random weights, with and without the callback."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import (
    GRPOConfig,
    GRPOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)

import gradiometer as gm
from gradiometer.errors import GradiometerWarning, MissingExtra, RunExists, UsageError
from gradiometer.integrations import grpo
from gradiometer.integrations.trl import GradiometerCallback, anatomy_of
from gradiometer.store.samples import read_samples

pytestmark = pytest.mark.slow

LETTERS = "abcdefghij"
PROMPTS = [first + second for first in "abcd" for second in "efgh"]
TIMES = {
    "step_time",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_tokens_per_second",
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that GRPO can load twice: to train it, and as the reference."""
    torch.manual_seed(0)
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    ends = {
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "max_position_embeddings": 64,
    }
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=13, num_key_value_heads=2, **shape, **ends))
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    return path


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<end>", "<unk>", *LETTERS]
    made = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        padding_side="left",
    )


def count_a(completions: list[str], **_: Any) -> list[float]:
    return [float(text.count("a")) for text in completions]


def count_early(completions: list[str], **_: Any) -> list[float]:
    return [float(sum(letter in "abc" for letter in text)) for text in completions]


def make(folder: Path | str, *callbacks: Any, **settings: Any) -> GRPOTrainer:
    given = {
        "output_dir": "out",
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "gradient_accumulation_steps": 2,
        "max_completion_length": 8,
        "max_steps": 3,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "max_grad_norm": 0.5,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "beta": 0.1,
        "entropy_coef": 0.02,
    }
    reward = settings.pop("reward", count_early)
    more = {name: settings.pop(name) for name in ("peft_config",) if name in settings}
    return GRPOTrainer(
        model=str(folder),
        reward_funcs=reward,
        args=GRPOConfig(**{**given, **settings}),
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
        **more,
    )


def watching(run: str = "run", **options: Any) -> GradiometerCallback:
    return GradiometerCallback(run=run, **{"budget": None, **options})


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def history(trainer: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in trainer.state.log_history]


def kinds(run: str) -> list[str]:
    return [event.kind for event in gm.load(run).events()]


# The observer does not disturb.


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_trained_weights_are_the_same_bits(folder: Path, checkpointing: bool) -> None:
    settings = {
        "gradient_checkpointing": checkpointing,
        "num_iterations": 2,
        "max_steps": 6,
        "use_adaptive_entropy": True,
    }
    settings |= {"entropy_target": 3.0}
    plain = make(folder, **settings)
    plain.train()
    callback = watching(anatomy_every=2, anatomy={"num_buckets": 2, "null": True})
    watched = make(folder, callback, **settings)
    watched.train()

    before, after = weights(plain), weights(watched)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert history(plain) == history(watched)
    assert plain.entropy_coef == watched.entropy_coef != 0.02
    run = gm.load("run")
    assert (
        len(run.series("grad/all/term/policy/norm")[0]) == 5
    )  # the first five measured steps split their loss
    assert run.series("grad_norm/all/task")[0].tolist() == [
        1,
        3,
        5,
    ]  # a generation serves two steps


def test_the_trainer_has_its_own_methods_again_after_the_training(folder: Path) -> None:
    trainer = make(folder, watching(), max_steps=1)
    trainer.train()

    assert not [
        name
        for name in vars(trainer)
        if callable(getattr(type(trainer), name, None)) and name != "train"
    ]


# What is measured.


@pytest.mark.parametrize("bf16", [False, True])
def test_the_raw_norm_is_the_norm_that_trl_logs_and_the_clipped_one_is_below_the_threshold(
    folder: Path, bf16: bool
) -> None:
    trainer = make(
        folder, watching(), bf16=bf16, gradient_accumulation_steps=3, generation_batch_size=12
    )
    trainer.train()

    run = gm.load("run")
    steps, raw = run.series("grad/all/norm/raw")
    logged_at, logged = run.series("grad_norm")
    assert (
        steps.tolist()
        == logged_at.tolist()
        == [1, 2, 3]
        == [row["step"] for row in trainer.state.log_history[:3]]
    )
    np.testing.assert_allclose(raw, logged, rtol=1e-5)
    np.testing.assert_allclose(
        logged, [row["grad_norm"] for row in trainer.state.log_history[:3]], rtol=0
    )
    np.testing.assert_allclose(
        run.series("grad/all/norm/clipped")[1], np.minimum(raw, 0.5), rtol=1e-4
    )
    assert set(run.series("grad/all/clip/threshold")[1]) == {0.5}
    assert raw.max() > 0.5
    assert set(run.series("meter/micro_batches")[1]) <= {3.0}


def test_the_scalars_of_trl_are_kept_once_under_its_names_and_mean_something_to_the_catalogue(
    folder: Path,
) -> None:
    trainer = make(folder, watching(), reward=count_a)
    trainer.train()

    run, logged = gm.load("run"), trainer.state.log_history[:3]
    for name in set(logged[0]) - {"step"}:
        steps, values = run.series(name)
        assert steps.tolist() == [1, 2, 3], name
        assert values.tolist() == [row[name] for row in logged], name
    found = {
        name: gm.metrics.find(name)[0].name
        for name in ("frac_reward_zero_std", "kl", "clip_ratio/region_mean")
    }
    assert found["frac_reward_zero_std"] == "zero_variance_groups"
    assert run.series("frac_reward_zero_std")[1].tolist() == [
        row["frac_reward_zero_std"] for row in logged
    ]
    assert run.facts["config"]["trainer"] == "GRPOTrainer"
    assert run.facts["config"]["beta"] == 0.1
    assert run.facts["seed"] == 42


def test_a_step_says_which_generation_it_trains_on_and_in_which_pass(folder: Path) -> None:
    make(folder, watching(), num_iterations=2, max_steps=4).train()

    run = gm.load("run")
    at = np.array([1, 2, 3, 4])
    assert run.where("rollout", at).tolist() == [0, 0, 1, 1]
    assert run.where("epoch", at).tolist() == [0, 1, 0, 1]


# The terms of the loss.

LOSSES = {
    "dapo": {},
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sequence level": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "high entropy tokens": {"top_entropy_quantile": 0.5},
}


def a_batch(folder: Path, **settings: Any) -> tuple[GRPOTrainer, dict[str, Any], Tensor]:
    """A trainer some steps away from its reference, the generation it made last, and the rewards of
    that."""
    callback = watching(run=None, terms=False)
    trainer = make(
        folder,
        callback,
        max_steps=2,
        learning_rate=5e-2,
        num_iterations=1,
        steps_per_generation=4,
        **settings,
    )
    trainer.train()
    assert callback._generation is not None
    batch, rewards = callback._generation
    assert torch.unique(batch["prompt_ids"], dim=0).shape[0] == 4
    return trainer, dict(batch), rewards


def gradient(loss: Tensor, trainer: GRPOTrainer) -> Tensor:
    parts = torch.autograd.grad(
        loss, list(trainer.model.parameters()), retain_graph=True, allow_unused=True
    )
    flat = [
        torch.zeros_like(p) if g is None else g
        for g, p in zip(parts, trainer.model.parameters(), strict=True)
    ]
    return torch.cat([part.flatten() for part in flat]).double()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_terms_add_up_to_trls_own_loss_and_leave_the_trainer_alone(
    folder: Path, loss: str
) -> None:
    trainer, batch, _ = a_batch(folder, **LOSSES[loss])
    trainer.model.train()
    with grpo.noting_forward(trainer) as seen:
        whole = trainer._compute_loss(trainer.model, batch)
    metrics = json.dumps(trainer._metrics)
    terms = grpo.loss_terms(trainer, trainer.model, batch, seen[-1])

    assert list(terms) == ["policy", "kl", "entropy"]
    torch.testing.assert_close(sum(terms.values()), whole)
    torch.testing.assert_close(
        sum(gradient(term, trainer) for term in terms.values()), gradient(whole, trainer)
    )
    assert all(gradient(term, trainer).norm() > 0 for term in terms.values())
    assert json.dumps(trainer._metrics) == metrics


def by_hand(trainer: GRPOTrainer, batch: dict[str, Any], rows: Tensor) -> dict[str, Tensor]:
    """GRPO's terms on some rows, token by token, written down here: `grpo` averages sequences,
    `dapo` tokens."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)[rows]
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)[rows]
    width = batch["completion_ids"].size(1)
    logits = (
        trainer.model(input_ids=ids, attention_mask=seen).logits[:, -width - 1 : -1].log_softmax(-1)
    )
    log_probs = logits.gather(-1, ids[:, -width:, None]).squeeze(-1)
    advantages, mask = batch["advantages"][rows, None], batch["completion_mask"][rows]
    ratio = torch.exp(log_probs - batch["old_per_token_logps"][rows])
    gap = batch["ref_per_token_logps"][rows] - log_probs
    kl = (gap.exp() - gap - 1) * (ratio if trainer.args.use_bias_correction_kl else 1)
    losses = {
        "task": -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages),
        "kl": 0.1 * kl,
        "entropy": 0.02 * (logits.exp() * logits).sum(-1),
    }
    if trainer.loss_type == "dapo":
        return {name: (loss * mask).sum() / mask.sum() for name, loss in losses.items()}
    means = {name: ((loss * mask).sum(1) / mask.sum(1)).mean() for name, loss in losses.items()}
    # TRL's bonus is a mean over tokens whatever the loss type; a bucket has its share of that of
    # the whole batch.
    share = len(batch["advantages"]) / len(rows) * mask.sum() / batch["completion_mask"].sum()
    return means | {"entropy": share * (losses["entropy"] * mask).sum() / mask.sum()}


@pytest.mark.parametrize("loss", ["dapo", "grpo"])
def test_the_anatomy_of_a_generation_is_what_brute_force_gives(folder: Path, loss: str) -> None:
    trainer, batch, rewards = a_batch(folder, loss_type=loss)
    before = weights(trainer)
    found = anatomy_of(
        trainer, batch, rewards, num_buckets=2, bucket_mode="quantile", micro_batch_size=3
    )

    stds = rewards.view(-1, 4).std(1)
    order = stds.argsort(stable=True)
    assert stds.unique().numel() == 4  # otherwise it is not clear which groups are the lower half
    rows = {"all": order, "bucket_1": order[:2], "bucket_2": order[2:]}
    assert found.buckets == tuple(rows)
    for bucket, groups in rows.items():
        members = (groups[:, None] * 4 + torch.arange(4)).flatten().sort().values
        terms = {
            name: gradient(term, trainer) for name, term in by_hand(trainer, batch, members).items()
        }
        for name, expected in terms.items():
            assert found.metrics[f"grad_norm/{bucket}/{name}"] == pytest.approx(
                float(expected.norm()), rel=1e-4
            ), name
        cosine = torch.cosine_similarity(terms["task"], terms["kl"], dim=0)
        assert found.metrics[f"grad_norm/{bucket}/cos/task~kl"] == pytest.approx(
            float(cosine), abs=1e-4
        )
    assert not [name for name in found.metrics if "/loss/" in name]
    assert all(torch.equal(before[name], now) for name, now in weights(trainer).items())
    assert all(p.grad is None for p in trainer.model.parameters())


def test_the_null_of_an_anatomy_permutes_advantages_inside_groups(folder: Path) -> None:
    trainer, batch, rewards = a_batch(folder)
    found = anatomy_of(trainer, batch, rewards, num_buckets=1, null=True, seed=3)

    from gradiometer.probes.survey import permuted_inside

    order = permuted_inside([tuple(row) for row in batch["prompt_ids"].tolist()], 3)
    shuffled = {**batch, "advantages": batch["advantages"][order]}
    expected = gradient(by_hand(trainer, shuffled, torch.arange(16))["task"], trainer).norm()
    assert found.metrics["grad_norm/all/null/task"] == pytest.approx(float(expected), rel=1e-4)


def test_terms_and_anatomy_are_kept_with_the_run(folder: Path) -> None:
    callback = watching(anatomy_every=2, anatomy={"num_buckets": 2})
    make(folder, callback).train()

    run = gm.load("run")
    assert run.series("grad/all/term/policy/share")[0].tolist() == [1, 2, 3]
    assert run.series("grad/all/term/additivity_error")[1].max() < 1e-5
    np.testing.assert_allclose(run.series("grad/all/term/scale")[1], 1.0, rtol=1e-5)
    steps, norms = run.series("grad_norm/all/task")
    assert steps.tolist() == [1, 3]
    # A generation is trained on in one step here, so the anatomy's gradient is that of the step
    # that follows.
    np.testing.assert_allclose(norms, run.series("grad/all/term/policy/norm")[1][[0, 2]], rtol=1e-4)
    assert {"bucket_1", "bucket_2"} < set(callback.anatomy().buckets)
    assert set(kinds("run")) <= {"stationary-term"}  # the KL's, while the policy is its reference


def test_texts_are_kept_with_their_rewards_and_advantages_where_trl_logs_them(
    folder: Path, tmp_path: Path
) -> None:
    for name, logged in (("with", True), ("without", False)):
        callback = GradiometerCallback(tmp_path / name, terms=False)
        make(folder, callback, max_steps=1, log_completions=logged).train()
    assert read_samples(gm.load(tmp_path / "without")) == []
    kept = read_samples(gm.load(tmp_path / "with"))
    assert kept
    for each in kept:
        assert each.prompt.replace(" ", "") in PROMPTS
        assert each.reward == count_early([each.completion])[0]
    rewards = [each.reward for each in kept]
    credit = [each.credit for each in kept]
    best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
    assert rewards[best] == rewards[worst] or credit[best] > credit[worst]


def test_a_loss_that_cannot_be_taken_apart_is_said_once_and_trained_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AttributeError("another version")

    monkeypatch.setattr("gradiometer.integrations.trl.loss_terms", refuse)
    trainer = make(folder, watching())
    with pytest.warns(GradiometerWarning, match="another version") as warned:
        trainer.train()

    assert len([one for one in warned if one.category is GradiometerWarning]) == 1
    assert kinds("run").count("terms-unmeasurable") == 1
    assert gm.load("run").series("grad/all/norm/raw")[0].tolist() == [1, 2, 3]


def test_an_anatomy_that_fails_is_said_once_and_the_training_goes_on(folder: Path) -> None:
    trainer = make(folder, watching(anatomy_every=1, anatomy={"bucket_mode": "no such mode"}))
    with pytest.warns(GradiometerWarning, match="no such mode"):
        trainer.train()

    assert kinds("run").count("anatomy-failed") == 1
    assert gm.load("run").series("grad/all/norm/raw")[0].tolist() == [1, 2, 3]


def test_terms_can_be_left_out(folder: Path) -> None:
    make(folder, watching(terms=False), max_steps=1).train()

    assert not [name for name in gm.load("run").names() if "/term/" in name]


# Fresh, resumed, raising, twice.


def test_a_resumed_training_goes_on_in_the_same_run(folder: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    make(folder, watching(), **saving).train()
    whole = gm.load("run").series("grad/all/norm/raw")
    resumed = make(folder, watching(), **saving)
    resumed.train(resume_from_checkpoint="out/checkpoint-2")

    run = gm.load("run")
    steps, norms = run.series("grad/all/norm/raw")
    assert steps.tolist() == [1, 2, 3, 4]
    assert norms[:2].tolist() == whole[1][:2].tolist()
    assert run.series("reward")[0].tolist() == [1, 2, 3, 4]
    assert [event.step for event in run.events("resumed")] == [2]
    np.testing.assert_allclose(
        norms[2:], [row["grad_norm"] for row in resumed.state.log_history[2:4]], rtol=1e-5
    )


def test_an_exception_is_kept_with_the_run_and_raised(folder: Path) -> None:
    calls: list[int] = []

    def fails(completions: list[str], **_: Any) -> list[float]:
        calls.append(1)
        if len(calls) > 2:
            raise KeyError("the verifier is gone")
        return count_early(completions)

    trainer = make(folder, watching(), reward=fails)
    with pytest.raises(KeyError, match="the verifier is gone"):
        trainer.train()

    run = gm.load("run")
    assert [event.message for event in run.events("exception")] == [
        "KeyError: 'the verifier is gone'"
    ]
    assert run.series("grad/all/norm/raw")[0].tolist() == [1, 2]
    assert "_compute_loss" not in vars(trainer)
    make(folder, watching("another")).train()  # nothing is left hooked or locked
    assert gm.load("another").newest_step == 3


def test_two_trainings_in_one_process(folder: Path) -> None:
    first = make(folder, watching("first"), max_steps=2)
    first.train()
    make(folder, watching("second"), max_steps=2).train()
    a, b = (
        gm.load("first").series("grad/all/norm/raw"),
        gm.load("second").series("grad/all/norm/raw"),
    )
    assert a[0].tolist() == b[0].tolist() == [1, 2]
    assert a[1].tolist() == b[1].tolist()

    first.train()  # again, with the weights it has: the run goes on after its last step
    assert gm.load("first").series("grad/all/norm/raw")[0].tolist() == [1, 2, 3, 4]
    assert gm.load("first").series("reward")[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(RunExists):
        make(folder, watching("second"), max_steps=2).train()


def test_the_callback_does_nothing_when_it_is_turned_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIOMETER_DISABLED", "1")
    make(folder, watching(), max_steps=1).train()

    assert not Path("run").exists()


# Adapters, other trainers, and mistakes.


def test_of_a_model_with_adapters_only_what_is_trained_is_measured(folder: Path) -> None:
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    callback = watching(anatomy_every=1, anatomy={"num_buckets": 1})
    trainer = make(folder, callback, peft_config=config, max_steps=2)
    trainer.train()

    run = gm.load("run")
    np.testing.assert_allclose(
        run.series("grad/all/norm/raw")[1],
        [row["grad_norm"] for row in trainer.state.log_history[:2]],
        rtol=1e-5,
    )
    states = run.table("states").content
    trained = {name for name, state in states.items() if state != "frozen"}
    assert trained == {name for name in states if "lora_" in name}
    assert run.series("grad/all/term/additivity_error")[1].max() < 1e-5


RANKS = """
import os, sys
_, _, tests, model, run = sys.argv[1:]
sys.path.insert(0, tests)
import torch
from test_trl import make, watching
other = os.fork()  # TRL is imported once for both ranks
rank = "0" if other else "1"
os.environ |= {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
trainer = make(model, watching(run), ddp_backend="gloo", max_steps=2)
assert trainer.accelerator.num_processes == 2
trainer.train()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
if not other:
    os._exit(0)
assert os.waitpid(other, 0)[1] == 0
print("logged", [row["grad_norm"] for row in trainer.state.log_history[:2]])
"""


def test_two_processes_give_the_norm_and_the_terms_of_the_averaged_gradient(
    folder: Path, tmp_path: Path, ranks: Callable[..., list[tuple[str, str]]]
) -> None:
    ((output, _),) = ranks(RANKS, 1, Path(__file__).parent, folder, tmp_path / "run")

    run = gm.load(tmp_path / "run")
    (line,) = [line for line in output.splitlines() if line.startswith("logged")]
    np.testing.assert_allclose(
        run.series("grad/all/norm/raw")[1], json.loads(line.removeprefix("logged")), rtol=1e-5
    )
    shares = [run.series(f"grad/all/term/{term}/share")[1] for term in ("policy", "kl", "entropy")]
    np.testing.assert_allclose(sum(shares), 1.0, atol=1e-4)


def test_other_trainers_of_trl_are_measured_too(folder: Path) -> None:
    args = SFTConfig(
        output_dir="out",
        max_steps=2,
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        save_strategy="no",
        gradient_checkpointing=False,
    )
    texts = Dataset.from_dict({"text": ["abcdef", "badcfe", "aabbcc", "ffeedd"]})
    trainer = SFTTrainer(
        model=str(folder),
        args=args,
        train_dataset=texts,
        processing_class=tokenizer(),
        callbacks=[watching()],
    )
    trainer.train()

    run = gm.load("run")
    np.testing.assert_allclose(
        run.series("grad/all/norm/raw")[1], run.series("grad_norm")[1], rtol=1e-5
    )


def test_the_terms_of_grpo_are_read_off_the_graph_where_the_callback_does_not_know_it(
    folder: Path,
) -> None:
    """The variables that made the loss are gone when it goes backward: names are by structure."""
    from gradiometer.integrations.transformers import GradiometerCallback as Plain

    make(folder, Plain(run="run", budget=None)).train()
    run = gm.load("run")
    rows = {row["name"]: row for row in run.tables("wiring")[-1].content["terms"]}
    assert set(rows) == {"policy", "kl", "term-1"}  # and the entropy
    assert (rows["policy"]["role"], rows["kl"]["role"]) == ("policy", "kl")
    assert (run.series("grad/all/term/additivity_error")[1] < 1e-5).all()
    assert not run.events("terms-unmeasurable")


def test_answers_of_rloo_are_replayed_and_an_anatomy_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    callback = watching(str(tmp_path / "rloo"))
    trainer = RLOOTrainer(
        model=str(folder),
        reward_funcs=count_a,
        args=RLOOConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=4,
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=8,
            report_to="none",
            save_strategy="no",
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["ab", "cd", "ef", "gh"] * 4}),
        processing_class=tokenizer(),
        callbacks=[callback],
    )
    trainer.train()
    with gm.load(tmp_path / "rloo") as run:
        assert "group-replay" in run.table_names()
        assert not run.events("terms-unmeasurable")
    with pytest.raises(UsageError, match="train a GRPOTrainer"):
        callback.anatomy()


def test_an_anatomy_without_a_generation_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="train a GRPOTrainer"):
        watching().anatomy()
    with pytest.raises(UsageError, match="anatomy_every"):
        watching(anatomy_every=0)


@pytest.mark.parametrize(("package", "module"), [("trl", "trl"), ("transformers", "transformers")])
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"gradiometer.integrations.{module}"
    importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf'pip install "gradiometer\[{package}\]"'):
        importlib.import_module(name)
