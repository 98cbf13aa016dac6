"""The ward of TRL: GRPO, RLOO and DPO on a tiny model of random weights, with one argument or
method changed.

Two toy tasks: write the letter `a` and end, or letters of the first half of the alphabet and end.
Both can be verified, and both are learnt within a few dozen steps: answers end by themselves by
then, and several times more is earned. GRPO and RLOO have TRL's own beta of 0: a penalty that holds
a policy at random weights is nobody's training.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers

from gradiometer.integrations.trl import GradiometerCallback
from gradiometer_labs.wards.ward import BUDGET, Patient, Ranges, Ward, replaced

__all__ = ["WARD"]

LETTERS = "abcdefgh"
MOST = 16
"""Tokens that an answer may have: at first a fifth is cut off, and soon none."""
PAIR = 6
"""Letters of DPO's answers."""
END = 1
"""The token that ends an answer."""
GROUPS = ("GRPO", "RLOO")
LIKED = {"letter": "a", "early": "abcd"}
SIZES: dict[str, Any] = {"width": [16, 32], "layers": [1, 2], "hidden_act": ["silu", "gelu"]}
GROUPED: dict[str, Any] = {"num_generations": [4, 8], "learning_rate": (5e-3, 1.5e-2), **SIZES}
PAIRS: dict[str, Any] = {
    "batch": [8, 16],
    "learning_rate": (3e-3, 1e-2),
    "beta": (0.05, 0.3),
    **SIZES,
}
WARD = Ward(
    name="trl",
    summary="TRL's GRPO, RLOO and DPO on a tiny model",
    setups={
        **{
            (algorithm, task): Ranges(fixed={"steps": 48, "batch": 32, "beta": 0.0}, drawn=GROUPED)
            for algorithm in GROUPS
            for task in LIKED
        },
        **{("DPO", task): Ranges(fixed={"steps": 30}, drawn=PAIRS) for task in LIKED},
    },
)


@dataclass(slots=True, kw_only=True)
class _Setup:
    """What is about to be made; a fault changes it."""

    arguments: dict[str, Any]
    """Of the trainer's config."""
    rewards: list[Callable[[list[float]], list[float]]] = field(default_factory=list)
    """What is done to the rewards of a batch before the trainer gets them."""
    after: list[Callable[[Any], None]] = field(default_factory=list)
    """What is done to the trainer that was made."""

    def generated(self, change: Callable[[Any, dict[str, Any]], None]) -> None:
        """What the trainer is about to train on, with its advantages."""

        def patch(trainer: Any) -> None:
            def generate(own: Callable[..., Any], inputs: Any) -> Any:
                batch = own(inputs)
                change(trainer, batch)
                return batch

            replaced(trainer, "_generate_and_score_completions", generate)

        self.after.append(patch)

    def batches(self, change: Callable[[dict[str, Any]], None]) -> None:
        """What DPO is about to train on: the chosen answers, then the rejected ones."""

        def patch(trainer: Any) -> None:
            def compute(own: Callable[..., Any], model: Any, inputs: Any, *more: Any) -> Any:
                change(inputs)
                return own(model, inputs, *more)

            replaced(trainer, "_compute_loss", compute)

        self.after.append(patch)


@WARD.trains
def train(patient: Patient, run: Path) -> Sequence[float]:
    """Train it with TRL's own trainer, watched by the callback."""
    drawn = dict(patient.settings)
    shape = {name: drawn.pop(name) for name in ("width", "layers", "hidden_act")}
    seed = drawn["seed"] % 2**31
    torch.manual_seed(seed)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    disable_progress_bars()
    folder = run.parent / "untrained"
    _model(shape).save_pretrained(folder)
    batch, steps = drawn.pop("batch"), drawn.pop("steps")
    setup = _Setup(
        arguments={
            **drawn,
            "seed": seed,
            "output_dir": str(run.parent / "checkpoints"),
            "per_device_train_batch_size": batch,
            "max_steps": steps,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "bf16": False,
            "use_cpu": True,
            "disable_tqdm": True,
            "gradient_checkpointing": False,
            "lr_scheduler_type": "constant",
        }
    )
    if patient.algorithm in GROUPS:
        setup.arguments["max_completion_length"] = MOST
    if patient.ward_fault is not None:
        patient.ward_fault.breaks(setup)
    callback = GradiometerCallback(run, quiet=True, budget=BUDGET, keep=4)
    made = _groups if patient.algorithm in GROUPS else _pairs
    trainer, returns = made(patient, str(folder), setup, callback, seed)
    for change in setup.after:
        change(trainer)
    trainer.train()
    if patient.algorithm == "DPO":
        logged = trainer.state.log_history
        returns = [row["rewards/accuracies"] for row in logged if "rewards/accuracies" in row]
    return returns


def _model(shape: dict[str, Any]) -> Any:
    config = transformers.Qwen2Config(
        vocab_size=3 + len(LETTERS),
        hidden_size=shape["width"],
        intermediate_size=2 * shape["width"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        hidden_act=shape["hidden_act"],
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=0,
    )
    return transformers.Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]


def _tokenizer() -> Any:
    words = ["<pad>", "<end>", "<unk>", *LETTERS]
    made = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        padding_side="left",
    )


def _groups(
    patient: Patient, folder: str, setup: _Setup, callback: Any, seed: int
) -> tuple[Any, list[float]]:
    """A trainer that generates, and the mean true reward of each generation."""
    returns: list[float] = []

    def liked(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        answers = zip(completions, completion_ids, strict=True)
        rewards = [_score(text, tokens, LIKED[patient.task]) for text, tokens in answers]
        returns.append(sum(rewards) / len(rewards))
        for change in setup.rewards:
            rewards = change(rewards)
        return rewards

    config = getattr(trl, f"{patient.algorithm}Config")(**setup.arguments)
    trainer = getattr(trl, f"{patient.algorithm}Trainer")(
        model=folder,
        reward_funcs=liked,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [a + b for a in LETTERS for b in LETTERS]}),
        processing_class=_tokenizer(),
        callbacks=[callback],
    )
    return trainer, returns


def _score(text: str, tokens: Sequence[int], liked: str) -> float:
    """The share of liked letters; an answer that does not end is worth nothing, as where a verifier
    finds none."""
    if END not in tokens or not text:
        return 0.0
    return sum(letter in liked for letter in text) / len(text)


def _pairs(
    patient: Patient, folder: str, setup: _Setup, callback: Any, seed: int
) -> tuple[Any, list[float]]:
    """A trainer of preferences: of two answers the one with more of the liked letters."""
    rng, rows = random.Random(seed), []
    for _ in range(160):
        two = ["".join(rng.choices(LETTERS, k=PAIR)) for _ in range(2)]
        two.sort(key=lambda text: sum(text.count(one) for one in LIKED[patient.task]))
        rows.append({"prompt": rng.choice(LETTERS), "chosen": two[1], "rejected": two[0]})
    trainer = getattr(trl, "DPOTrainer")(  # noqa: B009  (exported lazily)
        model=folder,
        args=getattr(trl, "DPOConfig")(**setup.arguments),  # noqa: B009
        train_dataset=Dataset.from_list(rows),
        processing_class=_tokenizer(),
        callbacks=[callback],
    )
    return trainer, []


# Settings


@WARD.fault(accept=("step-too-large", "kl-runaway", "ratio-explosion"))
def learning_rate_high(setup: _Setup) -> None:
    """The learning rate is 100 times what it should be."""
    setup.arguments["learning_rate"] *= 100


@WARD.fault(accept=("policy-frozen",))
def learning_rate_low(setup: _Setup) -> None:
    """The learning rate is a thousandth of what it should be."""
    setup.arguments["learning_rate"] /= 1000


@WARD.fault(accept=("over-clipping", "policy-frozen"))
def clip_norm_tiny(setup: _Setup) -> None:
    """The gradient is clipped to a norm of 1e-10, below the epsilon of the optimizer."""
    setup.arguments["max_grad_norm"] = 1e-10


@WARD.fault(*GROUPS, accept=("kl-strangled", "regulariser-dominates"))
def kl_coefficient_high(setup: _Setup) -> None:
    """The KL penalty outweighs the reward."""
    setup.arguments["beta"] = 10.0


@WARD.fault(*GROUPS, accept=("truncation",))
def answers_cut_off(setup: _Setup) -> None:
    """Answers are cut off after the first letter."""
    setup.arguments["max_completion_length"] = 1


@WARD.fault("DPO", accept=("update-opposes-reward", "reward-declining", "recipe-mismatch"))
def beta_negative(setup: _Setup) -> None:
    """The rejected answers are preferred: beta has the wrong sign."""
    setup.arguments["beta"] *= -1


@WARD.fault("DPO", accept=("kl-strangled", "policy-frozen", "preference-over-optimised"))
def beta_high(setup: _Setup) -> None:
    """beta is 1,000 times larger: after a step nothing more is learnt of a pair."""
    setup.arguments["beta"] *= 1000


# Rewards and data


@WARD.fault(*GROUPS, accept=("groups-too-hard", "zero-gradient-steps", "reward-term-dead"))
def reward_constant(setup: _Setup) -> None:
    """The verifier finds no answer right."""
    setup.rewards.append(lambda rewards: [0.0] * len(rewards))


@WARD.fault(*GROUPS, accept=("reward-unreliable", "noise-dominated"))
def verifier_random(setup: _Setup) -> None:
    """Rewards are those of other answers of the batch, drawn at random."""
    rng = random.Random(3)
    setup.rewards.append(lambda rewards: rng.sample(rewards, len(rewards)))


@WARD.fault(*GROUPS, accept=("misaligned-data", "recipe-mismatch", "reward-unreliable"))
def rewards_of_other_answers(setup: _Setup) -> None:
    """Rewards are moved by one answer."""
    setup.rewards.append(lambda rewards: [*rewards[1:], rewards[0]])


@WARD.fault("DPO", accept=("reward-unreliable", "noise-dominated"))
def labels_random(setup: _Setup) -> None:
    """Half of the pairs are exchanged, drawn anew each time."""

    def change(inputs: dict[str, Any]) -> None:
        half = len(inputs["input_ids"]) // 2
        swapped = torch.rand(half) < 0.5
        order = torch.arange(2 * half)
        order[:half][swapped] += half
        order[half:][swapped] -= half
        for name in ("input_ids", "attention_mask", "completion_mask"):
            inputs[name] = inputs[name][order]

    setup.batches(change)


# Advantages and masks


def _groups_of(trainer: Any, advantages: Any) -> Any:
    return advantages.view(-1, trainer.num_generations)


@WARD.fault(*GROUPS, accept=("recipe-mismatch", "update-opposes-reward"))
def advantages_flipped(setup: _Setup) -> None:
    """Advantages have the wrong sign."""
    setup.generated(lambda _, batch: batch.update(advantages=-batch["advantages"]))


@WARD.fault(*GROUPS, accept=("recipe-mismatch", "misaligned-data"))
def groups_cut_wrongly(setup: _Setup) -> None:
    """Advantages are laid out by generation, the answers by prompt."""
    setup.generated(
        lambda trainer, batch: batch.update(
            advantages=_groups_of(trainer, batch["advantages"]).T.reshape(-1)
        )
    )


@WARD.fault(*GROUPS, accept=("recipe-mismatch", "advantage-scale"))
def advantages_not_centred(setup: _Setup) -> None:
    """Advantages are shifted, so that every answer is made likelier."""
    setup.generated(lambda _, batch: batch.update(advantages=batch["advantages"] + 2.0))


@WARD.fault(*GROUPS, accept=("dead-term", "recipe-mismatch", "zero-gradient-steps"))
def advantages_zero(setup: _Setup) -> None:
    """Advantages are set to 0."""
    setup.generated(lambda _, batch: batch.update(advantages=0 * batch["advantages"]))


@WARD.fault(*GROUPS, accept=("advantage-outliers", "advantage-scale"))
def advantage_outlier(setup: _Setup) -> None:
    """One answer of each batch gets 200 times its advantage."""

    def change(_: Any, batch: dict[str, Any]) -> None:
        batch["advantages"] = batch["advantages"].clone()
        batch["advantages"][0] *= 200

    setup.generated(change)


@WARD.fault(*GROUPS, accept=("recipe-mismatch",))
def mask_missing(setup: _Setup) -> None:
    """The loss counts what stands behind the end of an answer."""
    setup.generated(
        lambda _, batch: batch.update(completion_mask=torch.ones_like(batch["completion_mask"]))
    )


@WARD.fault("DPO", accept=("recipe-mismatch", "misaligned-data", "noise-dominated"))
def prompt_not_masked(setup: _Setup) -> None:
    """The loss counts the prompt, and the answers' ends are left out."""

    def change(inputs: dict[str, Any]) -> None:
        inputs["completion_mask"] = 1 - inputs["completion_mask"]

    setup.batches(change)


# Model and optimizer


@WARD.fault(*GROUPS, accept=("sampler-mismatch", "score-not-zero-mean"))
def sampler_hotter(setup: _Setup) -> None:
    """Answers are sampled at three times the temperature that the loss assumes."""

    def patch(trainer: Any) -> None:
        trainer.generation_config.temperature *= 3.0

    setup.after.append(patch)


def _optimizer(setup: _Setup, chosen: Callable[[Any], list[Any]]) -> None:
    def patch(trainer: Any) -> None:
        trainer.optimizer = torch.optim.AdamW(
            chosen(trainer.model), lr=setup.arguments["learning_rate"], weight_decay=0.0
        )

    setup.after.append(patch)


@WARD.fault(accept=("never-trained", "not-in-optimizer"))
def optimizer_of_a_copy(setup: _Setup) -> None:
    """The optimizer holds the parameters of a copy of the model."""
    _optimizer(setup, lambda model: list(copy.deepcopy(model).parameters()))


@WARD.fault(accept=("not-in-optimizer", "never-trained"))
def optimizer_of_the_norm(setup: _Setup) -> None:
    """The optimizer has the parameters of the last norm only."""
    _optimizer(setup, lambda model: list(model.model.norm.parameters()))


@WARD.fault(accept=("gradients-not-cleared",))
def gradients_not_cleared(setup: _Setup) -> None:
    """`zero_grad` is missing: every step adds the gradients of all before."""

    def patch(trainer: Any) -> None:
        trainer.model.zero_grad = lambda set_to_none=True: None

    setup.after.append(patch)


@WARD.fault(accept=("nonfinite-gradient",))
def weights_nan(setup: _Setup) -> None:
    """A weight of the last layer is not a number after the eighth step."""

    def patch(trainer: Any) -> None:
        def step(own: Callable[..., Any], *args: Any) -> Any:
            if trainer.state.global_step == 8:
                with torch.no_grad():
                    trainer.model.model.norm.weight[0] = torch.nan
            return own(*args)

        replaced(trainer, "training_step", step)

    setup.after.append(patch)
