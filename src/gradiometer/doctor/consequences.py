"""What brings about what: the table by which consequences are folded under their causes.

An edge says "this alone makes that happen, or makes its reading untrustworthy", and stands where its reason is. The table has
no cycles: where two things can bring about each other, the edge goes from the one with a setting to change to the one without.
What begins with a changed line or a wrong setting is nobody's consequence, so that two such faults at once both come out.
"""

from __future__ import annotations

__all__ = ["ALL_FROZEN", "CONSEQUENCES", "DEAD_TERM"]

DEAD_TERM: dict[str, tuple[str, ...]] = {
    # the bonus was what held the entropy up
    "entropy": ("entropy-collapse", "action-collapse", "head-collapse", "reward-plateau"),
    # the penalty was what held the policy near its reference
    "kl": ("kl-runaway",),
    # the critic is fitted by nothing
    "value": ("critic-explains-nothing", "dead-block", "noise-dominated", "reward-plateau"),
    # regularisers are all that moves the weights
    "policy": (
        "regulariser-dominates",
        "critic-dominates",
        "policy-frozen",
        "entropy-never-falls",
        "zero-gradient-steps",
        "vanishing-gradient",
        "reward-plateau",
    ),
}
"""Of a dead term, by what it is for."""

ALL_FROZEN = ("critic-explains-nothing",)
"""Of a frozen policy besides, where it is all weights that stand still or the learning rate that ended: the critic's too."""

CONSEQUENCES: dict[str, tuple[str, ...]] = {
    # -- Wiring. What has no path cannot be learned, and what hangs on it fails with it.
    "dead-term": (
        *dict.fromkeys(id for ids in DEAD_TERM.values() for id in ids),
        "loss-not-reaching-module",  # a module that only this term reached
        "router-untrained",  # the task term is what trains a router
    ),
    # A term nobody named has its share of every gradient: others look small, the sum looks large.
    "hidden-term": ("regulariser-dominates", "terms-conflict", "over-clipping", "clip-always-active", "reward-plateau"),
    # No gradient: as if it were frozen, with dead units and a depth profile that shows a hole.
    "dead-block": (
        "vanishing-gradient",
        "depth-imbalance",
        "dormant-units",
        "head-collapse",
        "policy-frozen",
        "critic-explains-nothing",
        "loss-not-reaching-module",
        "reward-plateau",
    ),
    # Gradients arrive and no weight moves.
    "not-in-optimizer": (
        "policy-frozen",
        "critic-explains-nothing",
        "entropy-never-falls",
        "router-untrained",
        "reward-plateau",
    ),
    # Log-probs of another distribution than the sampler's: a biased direction, ratios that are not 1 on fresh data.
    "score-not-zero-mean": (
        "noise-dominated",
        "ratio-explosion",
        "ppo-clip-saturated",
        "reward-plateau",
        "reward-declining",
    ),
    # What is learned is never done: the score is that of other actions, and no reward answers to the policy.
    "actions-ignore-policy": ("score-not-zero-mean", "noise-dominated", "entropy-never-falls", "reward-plateau"),
    # The number read as entropy is another one, and a bonus on it holds up another distribution.
    "entropy-of-wrong-distribution": ("entropy-collapse", "entropy-never-falls", "reward-plateau"),
    # The same batch gives k times the gradient: a clip for another scale, an expert-parallel router off by that k.
    "gradient-not-invariant": ("over-clipping", "clip-always-active", "router-untrained"),
    # A penalty whose gradient is not that of the KL holds nothing back, or holds back the wrong way.
    "kl-gradient-wrong": ("kl-runaway", "kl-strangled", "reward-plateau", "reward-declining"),
    # A norm times the loss scale is far above any threshold: the true gradient is cut to almost nothing.
    "clip-before-unscale": (
        "over-clipping",
        "clip-always-active",
        "exploding-gradient",
        "gradient-spikes",
        "policy-frozen",
        "reward-plateau",
    ),
    # Two engines disagree on the same tokens: importance weights and ratios measure that, until something explodes.
    "sampler-mismatch": (
        "score-not-zero-mean",
        "stale-data",
        "ratio-explosion",
        "ppo-clip-saturated",
        "gradient-spikes",
        "exploding-gradient",
        "reward-plateau",
        "reward-declining",
    ),
    # -- Data. What goes in wrong comes out wrong.
    # Saturated units, a first layer of another scale, values that cannot be fitted; from constants only one answer.
    "observation-scale": (
        "dormant-units",
        "exploding-gradient",
        "vanishing-gradient",
        "depth-imbalance",
        "critic-explains-nothing",
        "critic-diverges",
        "entropy-collapse",
        "reward-plateau",
    ),
    # Each action is praised for what another one did, and each value target belongs to another state.
    "misaligned-data": (
        "returns-wrong",
        "critic-explains-nothing",
        "noise-dominated",
        "entropy-collapse",  # sure of what was praised by mistake
        "action-collapse",
        "reward-plateau",
    ),
    # Cut-off answers all score zero, and their values are targets of ends that were none.
    "truncation": ("groups-too-hard", "returns-wrong", "kl-runaway", "reward-plateau"),
    # -- Rewards and advantages. Their scale is the scale of everything behind them.
    "reward-scale": (
        "advantage-scale",
        "critic-explains-nothing",  # targets far from what a fresh head can reach
        "critic-diverges",
        "critic-dominates",  # the value loss goes with the square of the reward
        "exploding-gradient",
        "over-clipping",
        "regulariser-dominates",  # rewards too small: the bonus and the penalty are all that is left
        "reward-plateau",
    ),
    # Too large: the entropy bonus is nothing beside it. Too small: regularisers are all that is left. Not the step: Adam
    # cancels a constant scale.
    "advantage-scale": (
        "exploding-gradient",
        "over-clipping",
        "entropy-collapse",
        "regulariser-dominates",
        "reward-plateau",
    ),
    # One sample of weight 2000 is a spike, a jump of the ratio and a wide tail of advantages.
    "advantage-outliers": (
        "advantage-scale",
        "gradient-spikes",
        "ratio-explosion",
        "over-clipping",
        "noise-dominated",
        "reward-plateau",
    ),
    # Rewards that are partly luck: gradients that point at luck, returns that no critic explains.
    "reward-unreliable": ("noise-dominated", "critic-explains-nothing", "kl-runaway", "reward-plateau"),
    # The loud reward is learned, and it is the one that can be had without the task.
    "reward-term-dominates": ("reward-hacking", "reward-plateau"),
    # Groups that agree have no advantages: no gradient, and whatever regulariser there is has the word.
    "groups-too-easy": (
        "zero-gradient-steps",
        "vanishing-gradient",
        "noise-dominated",
        "regulariser-dominates",
        "template-collapse",
        "policy-frozen",
        "reward-plateau",
    ),
    "groups-too-hard": (
        "zero-gradient-steps",
        "vanishing-gradient",
        "noise-dominated",
        "regulariser-dominates",
        "template-collapse",
        "policy-frozen",
        "entropy-never-falls",  # nothing is ever reinforced
        "critic-explains-nothing",  # returns that do not vary
        "reward-plateau",
    ),
    # Batches that disagree: successive gradients have nothing in common, and steps lead nowhere.
    "noise-dominated": ("direction-random", "reward-plateau"),
    # One answer for all prompts: its groups agree more and more.
    "template-collapse": ("zero-gradient-steps", "reward-plateau"),
    # -- Critic. Wrong targets, then wrong values, then wrong advantages.
    "returns-wrong": (
        "critic-explains-nothing",
        "critic-diverges",
        "advantage-scale",
        "noise-dominated",
        "entropy-collapse",  # sure of what was praised by mistake
        "action-collapse",
        "reward-plateau",
    ),
    # Targets that move with what they train run away; targets that never move teach the first guess.
    "target-network": ("critic-diverges", "critic-explains-nothing", "reward-plateau"),
    # Its errors are the advantages, its loss is the largest term, its gradient the largest part.
    "critic-diverges": (
        "critic-explains-nothing",
        "critic-dominates",
        "exploding-gradient",
        "over-clipping",
        "reward-plateau",
        "reward-declining",
    ),
    # Explained variance of a baseline that has seen the answer says nothing about the baseline.
    "baseline-leak": ("critic-explains-nothing",),
    # Advantages as noisy as the returns.
    "critic-explains-nothing": ("noise-dominated", "reward-plateau"),
    # -- Step size. Too far, and everything that measures distance says so.
    "step-too-large": (
        "kl-runaway",
        "ppo-clip-saturated",
        "ratio-explosion",
        "exploding-gradient",
        "gradient-spikes",
        "gradient-oscillation",
        "critic-diverges",
        "dormant-units",
        "vanishing-gradient",  # saturated by one jump
        "groups-too-hard",  # a policy that was thrown off solves nothing any more
        "zero-gradient-steps",
        "router-untrained",
        "expert-dominates",
        "entropy-collapse",
        "reward-plateau",
        "reward-declining",
    ),
    # A policy that learns from another one's data has ratios far from 1 before its first step.
    "stale-data": ("ratio-explosion", "ppo-clip-saturated", "noise-dominated", "reward-plateau", "reward-declining"),
    # exp of a large difference is a spike, clipped where there is a clip.
    "ratio-explosion": ("gradient-spikes", "exploding-gradient", "ppo-clip-saturated", "reward-declining"),
    # Clipped samples have no gradient.
    "ppo-clip-saturated": ("policy-frozen", "zero-gradient-steps", "reward-plateau"),
    # Far from the reference: text the reward model never saw, a policy that forgot what it could.
    "kl-runaway": ("template-collapse", "reward-declining"),
    # The penalty holds the policy where it was.
    "kl-strangled": ("policy-frozen", "entropy-never-falls", "reward-plateau"),
    # What does not move does not learn.
    "policy-frozen": ("entropy-never-falls", "reward-plateau"),
    # -- Numbers. NaN stops the steps or ruins the weights.
    "nonfinite-gradient": ("zero-gradient-steps", "policy-frozen", "reward-plateau", "reward-declining"),
    # Each layer multiplies: the first are too small or too large.
    "depth-imbalance": ("vanishing-gradient", "exploding-gradient"),
    # Growth overflows in the end, and till then it spikes, is clipped, and kills units.
    "exploding-gradient": (
        "nonfinite-gradient",
        "gradient-spikes",
        "over-clipping",
        "clip-always-active",
        "dormant-units",
        "gradient-drift",
        "reward-declining",
    ),
    "gradient-spikes": ("over-clipping", "dormant-units", "reward-declining"),
    # Units that answer nothing pass nothing back.
    "dormant-units": ("vanishing-gradient", "reward-plateau"),
    "vanishing-gradient": ("policy-frozen", "gradient-drift", "module-dormant", "module-saturated", "reward-plateau"),
    "zero-gradient-steps": ("vanishing-gradient", "policy-frozen", "reward-plateau"),
    # -- Clipping. A ratio that varies takes the large gradients' say away; what is always clipped is always active.
    "over-clipping": ("clip-always-active", "policy-frozen", "critic-explains-nothing", "reward-plateau"),
    # -- Balance. One part moves the shared weights and the other does not get through.
    "critic-dominates": ("terms-conflict", "over-clipping", "head-collapse", "reward-plateau"),
    "regulariser-dominates": (
        "entropy-never-falls",
        "kl-strangled",
        "terms-conflict",
        "template-collapse",
        "reward-plateau",
    ),
    "terms-conflict": ("reward-plateau",),
    "head-collapse": ("reward-plateau",),
    # -- Exploration. A policy that is sure has no score gradient, always does the same and finds nothing new.
    "exploration-schedule": ("entropy-collapse", "entropy-never-falls", "action-collapse", "reward-plateau"),
    "entropy-collapse": (
        "head-collapse",
        "action-collapse",
        "zero-gradient-steps",
        "vanishing-gradient",
        "noise-dominated",
        "gradient-drift",
        "reward-plateau",
    ),
    "action-collapse": ("reward-plateau",),
    "entropy-never-falls": ("reward-plateau",),
    # -- Outcome. The wrong direction shows as a fall, a fall ends on a low plateau.
    "update-opposes-reward": ("reward-declining", "reward-plateau"),
    "reward-declining": ("reward-plateau",),
    # Longer answers are how the reward is exploited, and run into the limit.
    "length-exploit": ("reward-hacking", "truncation"),
    # An exploit lies where the reference never goes.
    "reward-hacking": ("kl-runaway",),
    # -- Modules. A grafted module that the loss does not reach, or that its host leaves nothing to learn.
    "loss-not-reaching-module": ("module-dormant",),
    "host-dominates": ("module-dormant", "module-saturated"),
    # -- Experts. An untrained router sends tokens anywhere; skewed loads starve some and feed others.
    "router-untrained": ("routing-imbalance", "experts-converged", "regulariser-dominates"),
    "routing-imbalance": ("expert-starved", "expert-dominates"),
    "expert-dominates": ("expert-starved",),
}
"""From a cause to what it brings about, directly; what brings about nothing is left out."""
