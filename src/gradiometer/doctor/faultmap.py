"""The failure catalogue (docs/failures.md): each fault, and the findings that name it best."""

from __future__ import annotations

__all__ = ["FAULT_IDS", "FAULT_NAMES", "failure", "mathematics"]

FAULTS = {
    # signal and reward
    "F1": ("every rollout of a group succeeds", "groups-too-easy zero-gradient-steps"),
    "F2": (
        "every rollout of a group fails, or the verifier is broken",
        "groups-too-hard zero-gradient-steps",
    ),
    "F3": ("a verifier that errs at random", "reward-unreliable noise-dominated"),
    "F4": ("a proxy reward that can be exploited", "reward-hacking"),
    "F5": ("length is rewarded", "length-exploit"),
    "F6": ("completions are cut off", "truncation"),
    "F7": ("one reward function outweighs the others", "reward-term-dominates"),
    "F8": ("rewards of the wrong scale", "reward-scale advantage-scale"),
    # advantages and returns
    "F9": ("the done mask is missing", "returns-wrong misaligned-data"),
    "F10": ("the discount is not carried back", "returns-wrong"),
    "F11": ("advantages are not normalised", "advantage-scale"),
    "F12": ("advantages are normalised twice, or over the wrong group", "advantage-scale"),
    "F13": ("a tiny spread blows advantages up", "advantage-outliers"),
    "F14": (
        "a discount or horizon that does not fit the task",
        "returns-wrong critic-explains-nothing",
    ),
    # policy optimisation
    "F15": ("the learning rate is too high", "step-too-large ratio-explosion kl-runaway"),
    "F16": ("the learning rate is too low, or its schedule has ended", "policy-frozen"),
    "F17": ("entropy collapses early", "entropy-collapse"),
    "F18": ("the policy stays random", "entropy-never-falls regulariser-dominates"),
    "F19": ("the entropy term has no gradient", "dead-term"),
    "F20": ("the policy term has no gradient", "dead-term"),
    "F21": ("a configured term is never there", "dead-term"),
    "F22": ("the KL penalty strangles, or lets go", "kl-runaway kl-strangled"),
    "F23": ("the PPO clip is saturated", "ppo-clip-saturated"),
    "F24": ("old data is used again", "stale-data"),
    "F25": ("sampler and trainer differ", "sampler-mismatch score-not-zero-mean"),
    "F26": ("the loss has the wrong sign", "update-opposes-reward reward-declining"),
    "F27": ("every prompt gets the same answer", "template-collapse"),
    # gradient scale and numerics
    "F28": ("the loss is divided twice, or never, by accumulation", "gradient-not-invariant"),
    "F29": ("an auxiliary loss nobody asked for", "hidden-term regulariser-dominates"),
    "F30": ("clipping before unscaling", "clip-before-unscale"),
    "F31": ("clipping nearly everything away", "over-clipping"),
    "F32": ("a NaN in one layer", "nonfinite-gradient"),
    "F33": ("gradient spikes", "gradient-spikes"),
    "F34": (
        "a dead, detached or frozen layer",
        "dead-block vanishing-gradient not-in-optimizer dormant-units",
    ),
    "F35": ("gradients explode with depth", "depth-imbalance exploding-gradient"),
    # critic
    "F36": ("the critic does not learn", "critic-explains-nothing dead-block not-in-optimizer"),
    "F37": ("the value loss swamps a shared trunk", "critic-dominates terms-conflict"),
    "F38": ("the target network is never, or always, updated", "target-network"),
    "F39": ("action values run away", "critic-diverges"),
    "F40": ("units fall silent", "dormant-units"),
    # exploration, environment and data
    "F41": ("the exploration schedule is wrong", "exploration-schedule"),
    "F42": ("one action is taken nearly always", "action-collapse"),
    "F43": ("observations are not normalised, or constant", "observation-scale"),
    "F44": ("observations and rewards do not belong together", "misaligned-data returns-wrong"),
    # experts
    "F45": ("experts that get no tokens", "routing-imbalance expert-starved experts-converged"),
    "F46": ("the task does not train the router", "router-untrained"),
    "F47": (
        "the router's gradient is wrong by a factor",
        "gradient-not-invariant router-untrained",
    ),
    "F48": ("one expert has most of the gradient", "expert-dominates"),
}
"""What went wrong, and the findings that name it. F0a to F0d are healthy runs: no id may answer."""

FAULT_NAMES = {number: name for number, (name, _) in FAULTS.items()}
FAULT_IDS = {number: tuple(ids.split()) for number, (_, ids) in FAULTS.items()}


def failure(number: str) -> str:
    """An entry of the failure catalogue as a finding's reference: its name and where it is."""
    return f"Failure catalogue, {number}: {FAULT_NAMES[number]} (docs/failures.md#{number.lower()})"


def mathematics(section: str) -> str:
    """A section of docs/mathematics.md as a finding's reference."""
    anchor = section.lower().replace(" ", "-")
    return f"Mathematics: {section} (docs/mathematics.md#{anchor})"
