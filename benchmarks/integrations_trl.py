"""TRL's GRPO and the Hugging Face Trainer on tiny models, handing over before each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.relay import Runner, follow

__all__ = ["prepare", "train_grpo", "train_trainer"]

LETTERS = "abcdefgh"
QUIET: dict[str, Any] = {
    "report_to": "none",
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
}
HandOver = Callable[..., None]


def likes_a(completions: list[str], **_: Any) -> list[float]:
    """A reward that differs inside groups."""
    return [text.count("a") / 16 for text in completions]


def tokenizer() -> Any:
    """A token for each letter."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<end>", "<unk>", *LETTERS]
    splitter = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    splitter.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    make: Any = PreTrainedTokenizerFast
    ends = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return make(tokenizer_object=splitter, padding_side="left", **ends)


def prepare(folder: Path) -> None:
    """Save the model that GRPO loads twice, two layers of width 64; no progress bars, and no line
    for each log."""
    import transformers

    made: Any = transformers
    made.utils.logging.disable_progress_bar()
    made.utils.logging.set_verbosity_error()
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    config = made.Qwen2Config(vocab_size=11, num_key_value_heads=2, **shape, **ends)
    made.Qwen2ForCausalLM(config).save_pretrained(folder / "model")


def callbacks(runner: Runner, hand_over: HandOver, callback: Any, steps: int) -> list[Any]:
    """The callback, if there is one, and the one that hands over: a round is `steps` steps."""
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                if callback is not None:
                    session = callback.session
                    follow(
                        runner,
                        session.meter,
                        lambda: float(session.meter._observer.seconds + session.seconds),
                    )
                runner.restart()
            hand_over(end_round=state.global_step > 0 and state.global_step % steps == 0)

    return [Turns()] if callback is None else [callback, Turns()]


def without_printer(trainer: Any) -> Any:
    """A trainer that does not print what it logs."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return trainer


def train_grpo(
    folder: Path, rounds: int, steps: int, runner: Runner, hand_over: HandOver, watched: bool
) -> None:
    """8 groups of 4 completions of 16 tokens a step, with a KL penalty and an entropy bonus."""
    import datasets
    import trl

    from gradiometer.integrations.trl import GradiometerCallback

    made: Any = trl
    callback = GradiometerCallback(run=folder / "grpo") if watched else None
    args = made.GRPOConfig(
        str(folder / f"out-grpo-{watched}"),
        per_device_train_batch_size=32,
        num_generations=4,
        max_completion_length=16,
        max_steps=rounds * steps + 1,
        beta=0.05,
        entropy_coef=0.01,
        bf16=False,
        **QUIET,
    )
    trainer = made.GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=likes_a,
        args=args,
        train_dataset=datasets.Dataset.from_dict(
            {"prompt": [a + b for a in LETTERS for b in LETTERS]}
        ),
        processing_class=tokenizer(),
        callbacks=callbacks(runner, hand_over, callback, steps),
    )
    without_printer(trainer).train()


class Counting(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sequences in which each token follows from the one before."""

    def __len__(self) -> int:
        return 8192

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (index + 3 * torch.arange(32)) % 17
        return {"input_ids": tokens, "labels": tokens}


def train_trainer(
    folder: Path, rounds: int, steps: int, runner: Runner, hand_over: HandOver, watched: bool
) -> None:
    """A language model of 0.8M parameters on 16 × 32 tokens a step."""
    import transformers

    from gradiometer.integrations.transformers import GradiometerCallback

    made: Any = transformers
    callback = GradiometerCallback(run=folder / "trainer") if watched else None
    torch.manual_seed(0)
    shape = {
        "n_positions": 32,
        "n_embd": 128,
        "n_layer": 4,
        "n_head": 4,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    model = made.GPT2LMHeadModel(made.GPT2Config(vocab_size=17, **shape))
    args = made.TrainingArguments(
        str(folder / f"out-trainer-{watched}"),
        per_device_train_batch_size=16,
        max_steps=rounds * steps + 1,
        logging_steps=10,
        **QUIET,
    )
    turns = callbacks(runner, hand_over, callback, steps)
    without_printer(
        made.Trainer(model=model, args=args, train_dataset=Counting(), callbacks=turns)
    ).train()
