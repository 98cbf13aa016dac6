"""From the failure catalogue to the findings that name each fault, the one that names it best first."""

from __future__ import annotations

__all__ = ["FAULT_IDS"]

FAULT_IDS: dict[str, tuple[str, ...]] = {
    # signal and reward
    "F1": ("groups-too-easy", "zero-gradient-steps"),
    "F2": ("groups-too-hard", "zero-gradient-steps"),
    "F3": ("reward-unreliable", "noise-dominated"),
    "F4": ("reward-hacking",),
    "F5": ("length-exploit",),
    "F6": ("truncation",),
    "F7": ("reward-term-dominates",),
    "F8": ("reward-scale", "advantage-scale"),
    # advantages and returns
    "F9": ("returns-wrong", "misaligned-data"),
    "F10": ("returns-wrong",),
    "F11": ("advantage-scale",),
    "F12": ("advantage-scale",),
    "F13": ("advantage-outliers",),
    "F14": ("returns-wrong", "critic-explains-nothing"),
    # policy optimisation
    "F15": ("step-too-large", "ratio-explosion", "kl-runaway"),
    "F16": ("policy-frozen",),
    "F17": ("entropy-collapse",),
    "F18": ("entropy-never-falls", "regulariser-dominates"),
    "F19": ("dead-term",),
    "F20": ("dead-term",),
    "F21": ("dead-term",),
    "F22": ("kl-runaway", "kl-strangled"),
    "F23": ("ppo-clip-saturated",),
    "F24": ("stale-data",),
    "F25": ("sampler-mismatch", "score-not-zero-mean"),
    "F26": ("update-opposes-reward", "reward-declining"),
    "F27": ("template-collapse",),
    # gradient scale and numerics
    "F28": ("gradient-not-invariant",),
    "F29": ("hidden-term", "regulariser-dominates"),
    "F30": ("clip-before-unscale",),
    "F31": ("over-clipping",),
    "F32": ("nonfinite-gradient",),
    "F33": ("gradient-spikes",),
    "F34": ("dead-block", "vanishing-gradient", "not-in-optimizer", "dormant-units"),
    "F35": ("depth-imbalance", "exploding-gradient"),
    # critic
    "F36": ("critic-explains-nothing", "dead-block", "not-in-optimizer"),
    "F37": ("critic-dominates", "terms-conflict"),
    "F38": ("target-network",),
    "F39": ("critic-diverges",),
    "F40": ("dormant-units",),
    # exploration, environment and data
    "F41": ("exploration-schedule",),
    "F42": ("action-collapse",),
    "F43": ("observation-scale",),
    "F44": ("misaligned-data", "returns-wrong"),
    # experts
    "F45": ("routing-imbalance", "expert-starved", "experts-converged"),
    "F46": ("router-untrained",),
    "F47": ("gradient-not-invariant", "router-untrained"),
    "F48": ("expert-dominates",),
}
"""F0a to F0d are healthy runs: no id may answer to them."""
