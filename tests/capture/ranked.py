"""One training that runs in one process, under DDP and under FSDP2 on the same global batches; the
tests run it in ranks."""

from __future__ import annotations

import numpy as np

from gradiometer.metrics import resolve
from gradiometer.store.reader import Run

TRAINING = '''
import contextlib, hashlib, os, sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import gradiometer as gm
from gradiometer.capture import ranks as ranks_module

rank, world, mode, folder, *options = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
BATCH, STEPS, PARTS = 16, 12, 2 if "accumulate" in options else 1


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 130), nn.Tanh())
        self.actor, self.critic = nn.Linear(130, 3), nn.Linear(130, 1)
        self.frozen, self.unused = nn.Linear(3, 3), nn.Linear(2, 5)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        h = self.trunk(x)
        return self.actor(h), self.critic(h)


def terms(out):
    logits, value = out
    log_probs = logits.log_softmax(-1)
    return {
        "policy": log_probs[:, 0].mean(),
        "value": 0.5 * (value - 1).square().mean(),
        "entropy": 0.01 * (log_probs.exp() * log_probs).sum(-1).mean(),
    }


def batch(step, part):
    x = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(1000 * step + part))
    return x if world == 1 else x[rank * BATCH // world : (rank + 1) * BATCH // world]


def wrapped(model):
    if mode == "ddp":
        model = DistributedDataParallel(model, find_unused_parameters=True, static_graph="static" in options)
        if "hook" in options:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
            model.register_comm_hook(None, fp16_compress_hook)
    if mode == "fsdp":
        from torch.distributed.fsdp import fully_shard
        for part in (model.trunk[0], model.trunk[2], model.actor):
            fully_shard(part)
        fully_shard(model)
    return model


def halves(model, x):
    """What the fp16 hook makes of two ranks, in one process."""
    parts = [torch.autograd.grad(sum(terms(model(part)).values()), used) for part in x.chunk(2)]
    for p, a, b in zip(used, *parts):
        p.grad = (a.half() / 2 + b.half() / 2).float()


def weights(model):
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in full)).hexdigest()


if mode != "single":
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
torch.manual_seed(0)
model = Policy()
used = [p for n, p in model.named_parameters() if not n.startswith(("frozen", "unused"))]
model = wrapped(model)
optimizer = (torch.optim.Adam if "adam" in options else torch.optim.SGD)(model.parameters(), lr=1e-2)
keywords = {"budget": None, "micro_batch_size": BATCH // world, "tier": "deep" if "deep" in options else "standard"}
keywords |= {"direction": "sketch"} if "sketch" in options else {}
keywords |= {"every": 2} if "sparse" in options else {}
os.environ["GRADIOMETER_DISABLED"] = "1" if "unwatched" in options else "0"
faults = next((option for option in options if option.startswith("fault=")), "")
with gm.watch(model, optimizer, run=folder, **keywords) as meter:
    for step in range(STEPS):
        optimizer.zero_grad()
        exec(faults.removeprefix("fault="))
        if "hook" in options and mode == "single":
            halves(model, batch(step, 0))
            made = {}
        for part in range(PARTS if not ("hook" in options and mode == "single") else 0):
            quiet = mode == "ddp" and part + 1 < PARTS
            if mode == "fsdp" and "nosync" in options:
                model.set_requires_gradient_sync(part + 1 == PARTS)
            with model.no_sync() if quiet else contextlib.nullcontext():
                made = {name: x / PARTS for name, x in terms(model(batch(step, part))).items()}
                if "terms" in options:
                    with meter.terms(**made) as loss:
                        loss.backward()
                else:
                    sum(made.values()).backward()
        if "noclip" not in options:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        meter.log(rank=rank)
print(weights(model))
'''


def differences(one: Run, many: Run, name: str) -> float:
    """The largest difference between two series of a name, relative to their size."""
    (steps, expected), (others, found) = one.series(name), many.series(name)
    assert steps.tolist() == others.tolist(), name
    assert (np.isnan(expected) == np.isnan(found)).all(), name
    known = resolve(name)
    small = known is not None and (known[0].scale == "linear" or name.endswith("drift_p"))
    floor = 1e-2 if small else 1e-9  # what may cancel to nothing is judged in its own unit
    return float(
        np.nanmax(np.abs(expected - found) / np.maximum(np.abs(expected), floor), initial=0.0)
    )


def without_credit(run: Run) -> set[str]:
    """The names of what is no credit."""
    return {name for name in run.names() if "credit/" not in name}


def without_terms(run: Run) -> set[str]:
    """The names of what is no term's and no credit, which a sharded model does not have."""
    return {name for name in run.names() if "/term/" not in name and "credit/" not in name}


def assert_same(one: Run, many: Run) -> None:
    """Every series that both have, and every sketch and histogram, to 1e-5. Credit is of the
    samples of rank 0 alone."""
    names = [
        name
        for name in set(one.names()) & set(many.names())
        if not name.startswith(("meter/", "rank", "credit/"))
    ]
    assert len(names) > 20
    far = {name: error for name in names if (error := differences(one, many, name)) > 1e-5}
    for run in (one, many):  # rounding is no number of theirs
        if far.pop("grad/all/term/additivity_error", None):
            assert np.nanmax(run.series("grad/all/term/additivity_error")[1]) < 1e-5
    assert not far, far
    vectors = _vectors(one)
    assert vectors == _vectors(many)
    for name in vectors:
        for step in one.vector_steps(name).tolist():
            expected, found = one.vector(name, step).values, many.vector(name, step).values
            np.testing.assert_allclose(
                found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max(), err_msg=name
            )


def _vectors(run: Run) -> set[str]:
    return {name for name in run.vector_names() if not name.startswith("credit/")}
