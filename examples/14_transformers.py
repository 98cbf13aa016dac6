"""Watch a Hugging Face Trainer: one callback, here on a tiny language model that learns to count in
threes.

`python examples/14_transformers.py` prints the loss, and at one step the gradient norm that the
trainer logged beside the meter's. Needs `pip install "gradiometer[transformers]"`.
"""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import gradiometer as gm
from gradiometer.integrations.transformers import GradiometerCallback


class Counting(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        tokens = (index + 3 * torch.arange(12)) % 17
        return {"input_ids": tokens, "labels": tokens}


trainer = Trainer(
    model=GPT2LMHeadModel(
        GPT2Config(vocab_size=17, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    ),
    args=TrainingArguments(
        output_dir="checkpoints",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=4,
        learning_rate=3e-3,
        logging_steps=4,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=Counting(),
    # budget=None measures every step, so that those the trainer logs are among them.
    callbacks=[GradiometerCallback(run="runs/trainer", overwrite=True, budget=None)],
)
trainer.train()

run = gm.load("runs/trainer")
steps, raw = run.series("grad/all/norm/raw")
at, logged = run.series("grad_norm")  # the trainer's own, before clipping
both = sorted(set(steps) & set(at))
ours, theirs = dict(zip(steps, raw, strict=True)), dict(zip(at, logged, strict=True))
print(
    f"{run.newest_step} steps, {len(steps)} measured; loss {run.series('loss')[1][0]:.3g} ->"
    f" {run.series('loss')[1][-1]:.3g}"
)
print(
    f"at step {both[0]} the trainer logged a norm of {theirs[both[0]]:.5g}, the meter saw"
    f" {ours[both[0]]:.5g}"
)
