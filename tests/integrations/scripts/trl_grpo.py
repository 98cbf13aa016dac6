"""GRPO of TRL on a tiny model of random weights."""

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

words = ["<pad>", "<end>", "<unk>", *"abcdefghij"]
known = Tokenizer(
    models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
)
known.pre_tokenizer = pre_tokenizers.Split("", "isolated")
ends = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>", "padding_side": "left"}


def reward(completions, **_):
    return [float(sum(letter in "abc" for letter in text)) for text in completions]


def main():
    torch.manual_seed(0)
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    ids = {
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "max_position_embeddings": 64,
    }
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=13, num_key_value_heads=2, **shape, **ids))
    args = GRPOConfig(
        output_dir="out",
        per_device_train_batch_size=4,
        num_generations=4,
        gradient_accumulation_steps=2,
        max_completion_length=8,
        max_steps=3,
        logging_steps=1,
        learning_rate=1e-2,
        max_grad_norm=0.5,
        report_to="tensorboard",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["ab", "cd", "ef", "gh"] * 4}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=known, **ends),
    )
    trainer.train()
    torch.save(trainer.model.state_dict(), sys.argv[1])


if __name__ == "__main__":
    main()
