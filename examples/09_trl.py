"""Watch TRL's GRPO: norms by stage, what policy, KL and entropy each do to the weights, and an
anatomy every 10 steps.

`python examples/09_trl.py` prints the reward, the share of each term in the gradient, and the norms
of groups that teach little and much. Needs `pip install "gradiometer[trl]"`.
"""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

import gradiometer as gm
from gradiometer.integrations.trl import GradiometerCallback

words = [
    "<pad>",
    "<end>",
    "<unk>",
    *"abcdefgh",
]  # a model and a tokenizer made here, so that nothing is downloaded
splitter = Tokenizer(
    models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
)
splitter.pre_tokenizer = pre_tokenizers.Split("", "isolated")
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=splitter,
    pad_token="<pad>",
    eos_token="<end>",
    unk_token="<unk>",
    padding_side="left",
)
shape = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
config = Qwen2Config(
    vocab_size=len(words),
    num_key_value_heads=2,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
    **shape,
)
Qwen2ForCausalLM(config).save_pretrained("checkpoints/untrained")


def likes_a(completions, **_):
    return [text.count("a") / 8 for text in completions]


trainer = GRPOTrainer(
    model="checkpoints/untrained",
    reward_funcs=likes_a,
    args=GRPOConfig(
        "checkpoints",
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=8,
        max_steps=20,
        learning_rate=1e-2,
        beta=0.05,
        entropy_coef=0.01,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_dict(
        {"prompt": [first + second for first in "abcd" for second in "efgh"]}
    ),
    processing_class=tokenizer,
    callbacks=[GradiometerCallback(run="runs/grpo", overwrite=True, budget=None, anatomy_every=10)],
)
trainer.train()

run = gm.load("runs/grpo")
print(f"reward {run.series('reward')[1][0]:.2f} -> {run.series('reward')[1][-1]:.2f}")
for term in ("policy", "kl", "entropy"):
    steps, shares = run.series(f"grad/all/term/{term}/share")
    print(f"{term:<8} {shares[-1]:+.3f} of the gradient at step {steps[-1]}")
for bucket in ("bucket_1", "bucket_4"):  # the groups whose rewards differ least, and most
    print(
        f"{bucket}: the task's gradient has a norm of"
        f" {run.series(f'grad_norm/{bucket}/task')[1][-1]:.3g}"
    )
