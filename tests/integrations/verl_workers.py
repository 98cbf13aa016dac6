"""verl's own actor and critic workers on gloo ranks, with a random model: `verl_workers.py OUT`.

torchrun starts it, with VERL_PLATFORM=cpu and this module in VERL_USE_EXTERNAL_MODULES, for verl
has no platform for CPUs. Each rank writes what it has trained and what verl told.
"""

import contextlib
import functools
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import verl.utils.import_utils
from transformers import AutoModelForTokenClassification, Qwen2Config, Qwen2ForCausalLM
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

STEPS, SAMPLES, PROMPT, ANSWER = 3, 8, 5, 6


def nothing(*_):
    return 0


DEVICE = SimpleNamespace(
    **dict.fromkeys(
        [
            "max_memory_allocated",
            "max_memory_reserved",
            "memory_allocated",
            "memory_reserved",
            "empty_cache",
            "set_device",
            "synchronize",
            "manual_seed",
            "ipc_collect",
            "reset_peak_memory_stats",
        ],
        nothing,
    ),
    mem_get_info=lambda *_: (0, 0),
    current_device=lambda: "cpu",
    get_device_name=lambda *_: "CPU",
    is_available=lambda: True,
    device_count=lambda: 2,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
)


@PlatformRegistry.register(platform="cpu")
class CPU(PlatformBase):
    """What verl asks of a device."""

    device_name = vendor_name = "cpu"
    device_module = DEVICE
    set_device = synchronize = manual_seed = manual_seed_all = nothing
    set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = nothing

    def is_available(self):
        return True

    def is_ipc_supported(self):
        return False

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 2

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def ray_resource_name(self):
        return "CPU"

    def ray_noset_envvars(self):
        return []


# Newer versions of trl have no AutoModelForCausalLMWithValueHead; without trl verl does not ask.
verl.utils.import_utils.is_trl_available = lambda: False


def eager_attention(from_pretrained):
    """verl asks for flash attention for each value model, and no CPU has it."""
    return lambda *args, **more: from_pretrained(*args, **{**more, "attn_implementation": "eager"})


def worker(role, model):
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        FSDPActorConfig,
        FSDPCriticConfig,
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
    )
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
    from verl.workers.utils.losses import ppo_loss, value_loss

    torch.manual_seed(0)
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="value_model" if role == "critic" else "language_model",
            model_config=HFModelConfig(
                path=str(model),
                load_tokenizer=False,
                use_remove_padding=False,
                enable_gradient_checkpointing=False,
                override_config={"attn_implementation": "eager"},
                external_lib=os.environ.get("LINE_OF_THE_CONFIG"),
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=2,
                use_torch_compile=False,
            ),
            optimizer_config=FSDPOptimizerConfig(lr=1e-2, clip_grad=0.1, total_training_steps=100),
            checkpoint_config=CheckpointConfig(),
        )
    )
    made.reset()
    loss, config = (
        (value_loss, FSDPCriticConfig) if role == "critic" else (ppo_loss, FSDPActorConfig)
    )
    given = config(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=2)
    made.set_loss_fn(functools.partial(loss, config=given))
    return made


def batch(step, rank):
    from verl.utils import tensordict_utils

    source = torch.Generator().manual_seed(1000 * step + rank)
    ids = [torch.randint(1, 60, (PROMPT + ANSWER,), generator=source) for _ in range(SAMPLES)]
    mask = torch.cat([torch.zeros(PROMPT), torch.ones(ANSWER)])

    def jagged(rows):
        return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)

    def random(mean=0.0):
        return jagged(torch.randn(ANSWER, generator=source) + mean for _ in range(SAMPLES))

    return tensordict_utils.get_tensordict(
        tensor_dict={
            "input_ids": jagged(ids),
            "position_ids": jagged(torch.arange(PROMPT + ANSWER) for _ in ids),
            "loss_mask": jagged(mask.clone() for _ in ids),
            "prompts": jagged(x[:PROMPT] for x in ids),
            "responses": jagged(x[PROMPT:] for x in ids),
            "response_mask": jagged(torch.ones(ANSWER).long() for _ in ids),
            "old_log_probs": random(mean=-4.1),
            **{name: random() for name in ("advantages", "values", "returns")},
        },
        non_tensor_dict={
            "temperature": 1.0,
            "global_batch_size": SAMPLES,
            "mini_batch_size": SAMPLES,
            "epochs": 1,
            "seed": 1,
            "dataloader_kwargs": {"shuffle": False},
            "calculate_entropy": True,
        },
    )


def small_model(folder):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def main(out):
    from verl.utils import tensordict_utils
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl as engines

    theirs = AutoModelForTokenClassification.from_pretrained
    AutoModelForTokenClassification.from_pretrained = eager_attention(theirs)
    torch.distributed.init_process_group("gloo")  # verl's own words would name the CPU twice
    rank = torch.distributed.get_rank()
    EngineRegistry.register("language_model", "fsdp2", "cpu")(engines.FSDPEngineWithLMHead)
    EngineRegistry.register("value_model", "fsdp2", "cpu")(engines.FSDPEngineWithValueHead)
    if rank == 0:
        small_model(out / "model")
    torch.distributed.barrier()
    workers = {role: worker(role, out / "model") for role in ("critic", "actor")}
    told = {role: [] for role in workers}
    for step in range(STEPS):
        for role, one in workers.items():
            metrics = tensordict_utils.get(one.train_mini_batch(batch(step, rank)), "metrics")
            told[role].append(dict(metrics))
    weights = {
        role: {name: x.full_tensor() for name, x in one.engine.module.state_dict().items()}
        for role, one in workers.items()
    }
    torch.save({"weights": weights, "told": told}, out / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
