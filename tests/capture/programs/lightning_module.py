from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from .parts import STEPS, ActorCritic, batch

NAMES = {"policy": "policy", "value": "value", "entropy": "entropy"}  # by what they are made of


class Module(pl.LightningModule):
    def __init__(self, oracle: Any) -> None:
        super().__init__()
        self.model, self.oracle = ActorCritic(), oracle

    def training_step(self, rows: tuple[Tensor, ...], _: int) -> Tensor:
        observations, actions, advantages, returns = rows
        logits, values = self.model(observations)
        log_probs = logits.log_softmax(-1)
        policy_loss = -(log_probs.gather(1, actions[:, None]).squeeze(1) * advantages).mean()
        value_loss = torch.nn.functional.mse_loss(values, returns)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        self.oracle(self, policy=policy_loss, value=0.5 * value_loss, entropy=-0.01 * entropy)
        return policy_loss + 0.5 * value_loss - 0.01 * entropy

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Watching(pl.Callback):
    def __init__(self, watch: Any) -> None:
        self.watch = watch

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.meter = self.watch(module, trainer.optimizers[0])

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.meter.close()


def train(watch: Any, oracle: Any) -> None:
    rows = [torch.cat(each) for each in zip(*(batch() for _ in range(STEPS)), strict=True)]
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[Watching(watch)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(oracle), DataLoader(TensorDataset(*rows), batch_size=16))
