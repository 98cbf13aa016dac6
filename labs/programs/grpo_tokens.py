"""GRPO on a small language task: answers whose digits add up to the prompt's number."""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH = 12, 4
END = 10


class Writer(nn.Module):
    """A GRU that reads the prompt and writes tokens."""

    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY + 20, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        hidden, _ = self.body(self.embed(tokens))
        return self.head(hidden)


@torch.no_grad()
def generate(model, prompts):
    tokens = prompts[:, None]
    for _ in range(LENGTH):
        probs = F.softmax(model(tokens)[:, -1], dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(probs, 1)], 1)
    return tokens


def reward_of(tokens):
    wanted, answer = tokens[:, 0] - VOCABULARY, tokens[:, 1:]
    before_end = (answer == END).cumsum(1) == 0
    total = torch.where(before_end & (answer < 10), answer, 0).sum(1)
    ended = (answer == END).any(1)
    close = 1.0 - (total - wanted).abs().clamp(max=10) / 10.0
    return (total == wanted).float() + 0.5 * close + 0.1 * ended.float()


def per_token_logps(model, tokens):
    logits = model(tokens)[:, :-1]
    logps = F.log_softmax(logits, dim=-1)
    return logps.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--num-generations", type=int, default=8)
    parser.add_argument("--beta", type=float, default=0.01)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = Writer()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    for step in range(args.steps):
        prompts = torch.randint(0, 15, (8,)) + VOCABULARY
        tokens = generate(model, prompts.repeat_interleave(args.num_generations))
        rewards = reward_of(tokens)
        grouped = rewards.view(-1, args.num_generations)
        centred = grouped - grouped.mean(1, keepdim=True)
        advantages = (centred / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)
        answer = tokens[:, 1:]
        mask = (((answer == END).cumsum(1) - (answer == END).long()) == 0).float()
        with torch.no_grad():
            old_logps = per_token_logps(model, tokens)
            ref_logps = per_token_logps(reference, tokens)
        for _ in range(2):
            logps = per_token_logps(model, tokens)
            ratio = torch.exp(logps - old_logps)
            clipped = torch.clamp(ratio, 0.8, 1.2)
            gain = torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
            per_token_kl = torch.exp(ref_logps - logps) - (ref_logps - logps) - 1
            per_token_loss = -gain + args.beta * per_token_kl
            loss = (per_token_loss * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if step % 5 == 0:
            print({"step": step, "reward": round(rewards.mean().item(), 4)})


if __name__ == "__main__":
    main()
