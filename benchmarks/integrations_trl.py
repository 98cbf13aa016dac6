"""What `GradiometerCallback` with its default settings takes of TRL's GRPO and of the Hugging Face Trainer, tiny models."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.trainers import Taken, side_by_side

__all__ = ["grpo", "trainer"]

GRPO_STEPS, TRAINER_STEPS, PAIRS = 150, 400, 4
LETTERS = "abcdefgh"
QUIET: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}


def likes_a(completions: list[str], **_: Any) -> list[float]:
    """A reward that differs inside groups."""
    return [text.count("a") / 16 for text in completions]


def tokenizer() -> Any:
    """A token for each letter."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<end>", "<unk>", *LETTERS]
    splitter = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    splitter.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    make: Any = PreTrainedTokenizerFast
    ends = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return make(tokenizer_object=splitter, padding_side="left", **ends)


def save_model(folder: Path) -> None:
    """Two layers of width 64, 0.1M parameters: GRPO loads it twice, once as the reference."""
    import transformers

    made: Any = transformers
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    made.Qwen2ForCausalLM(made.Qwen2Config(vocab_size=11, num_key_value_heads=2, **shape, **ends)).save_pretrained(
        folder
    )


def timed(made: Any, callback: Any, run: Path | None) -> Taken:
    """From the first step to the finished file; the callback's set-up, once, is told apart."""
    setting_up: list[float] = []
    if callback is not None:
        begin = callback.on_train_begin

        def clocked(*args: Any, **kwargs: Any) -> None:
            start = time.perf_counter()
            begin(*args, **kwargs)
            setting_up.append(time.perf_counter() - start)

        callback.on_train_begin = clocked
    start, start_cpu = time.perf_counter(), time.process_time()
    made.train()
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    hooks = 0.0 if callback is None else callback.session.meter._rig.seconds + callback.session.seconds
    once = sum(setting_up)
    return Taken(wall=wall - once, cpu=cpu - once, hooks=hooks, setting_up=once, run=run)


def train_grpo(folder: Path, run: Path | None) -> Taken:
    """8 groups of 4 completions of 16 tokens a step, with a KL penalty and an entropy bonus."""
    import datasets
    import trl

    from gradiometer.integrations.trl import GradiometerCallback

    made: Any = trl
    callback = None if run is None else GradiometerCallback(run=run)
    args = made.GRPOConfig(
        str(folder / "out"),
        per_device_train_batch_size=32,
        num_generations=4,
        max_completion_length=16,
        max_steps=GRPO_STEPS,
        beta=0.05,
        entropy_coef=0.01,
        bf16=False,
        **QUIET,
    )
    grpo = made.GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=likes_a,
        args=args,
        train_dataset=datasets.Dataset.from_dict({"prompt": [a + b for a in LETTERS for b in LETTERS]}),
        processing_class=tokenizer(),
        callbacks=[] if callback is None else [callback],
    )
    return timed(grpo, callback, run)


class Counting(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sequences in which each token follows from the one before."""

    def __len__(self) -> int:
        return 8192

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (index + 3 * torch.arange(32)) % 17
        return {"input_ids": tokens, "labels": tokens}


def train_trainer(folder: Path, run: Path | None) -> Taken:
    """A language model of 0.8M parameters on 16 × 32 tokens a step."""
    import transformers

    from gradiometer.integrations.transformers import GradiometerCallback

    made: Any = transformers
    callback = None if run is None else GradiometerCallback(run=run)
    torch.manual_seed(0)
    shape = {"n_positions": 32, "n_embd": 128, "n_layer": 4, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
    model = made.GPT2LMHeadModel(made.GPT2Config(vocab_size=17, **shape))
    args = made.TrainingArguments(
        str(folder / "out"), per_device_train_batch_size=16, max_steps=TRAINER_STEPS, logging_steps=10, **QUIET
    )
    callbacks = [] if callback is None else [callback]
    return timed(made.Trainer(model=model, args=args, train_dataset=Counting(), callbacks=callbacks), callback, run)


def quieten() -> None:
    """No progress bars, and no line for each log."""
    import transformers

    made: Any = transformers
    made.utils.logging.disable_progress_bar()
    made.utils.logging.set_verbosity_error()
    made.PrinterCallback.on_log = lambda *_, **__: None


def grpo(folder: Path) -> None:
    """TRL; one training before the clock starts, which imports and warms up."""
    quieten()
    save_model(folder / "model")
    train_grpo(folder, folder / "warm-up-grpo")
    name = f"TRL GRPO on a tiny Qwen2, {GRPO_STEPS} steps"
    side_by_side(name, partial(train_grpo, folder), PAIRS, "target ≤ 1.02 ×", folder)


def trainer(folder: Path) -> None:
    """The Hugging Face Trainer, likewise."""
    quieten()
    train_trainer(folder, folder / "warm-up-trainer")
    name = f"transformers Trainer on a GPT-2 of 0.8M parameters, {TRAINER_STEPS} steps"
    side_by_side(name, partial(train_trainer, folder), PAIRS, "target ≤ 1.02 ×", folder)
