"""Advantages as the update had them, against advantages as they ought to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradiometer.doctor import thresholds
from gradiometer.doctor.proofs import Way, known_events, looked, proved_finding
from gradiometer.doctor.replayed import (
    GAMMA,
    GROUPS,
    TABLE,
    TARGET_BATCHES,
    is_credited_alike,
    lost_traces,
    replayed,
    replayed_groups,
    replayed_targets,
    replayed_values,
    seen_setting,
    set_discount,
    set_lengths,
)
from gradiometer.doctor.rule import Draft, Skipped, Verdict, Words, proof, rule, sections, words
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.signs import number
from gradiometer.maths.grouprecipes import GroupFit, Lengths, ReplayedGroups
from gradiometer.maths.recipes import Fit, ReplayedRecipes
from gradiometer.maths.targetrecipes import ReplayedTargets, TargetFit
from gradiometer.records import Event, Evidence

limits = thresholds.group("wiring_replay")

__all__: list[str] = []

FIXES = {
    "ends-not-masked": (
        "Multiply what follows by (1 − done), in the value of the next state and in the running sum"
    ),
    "sum-not-masked": "Multiply the running sum by (1 − done) as well: γλ·(1 − done)·last",
    "value-not-masked": "Multiply the value of the next state by (1 − done)",
    "ends-one-late": "Use the flag of the step itself: whether it ended the episode",
    "ends-bootstrapped": "Multiply the value of the next state by (1 − terminated)",
    "rewards-one-late": "Store the reward in the row of the action that earned it",
    "rewards-one-early-in-episodes": "Take the reward of the step itself, rews[:-1]",
    "rewards-one-early": "Store the reward in the row of the action that earned it",
    "gamma-zero": "Set the discount: 0.99 is usual",
    "past-rewards": "Sum from the last step to the first, and keep the order of the samples",
    "order-reversed": "Reverse the list of returns or advantages once it is filled from the end",
    "ends-inverted": "Multiply the value of the next state by (1 − terminated), not by terminated",
    "environments-mixed": "Flatten observations, actions and advantages in the same order",
    "steps-mixed": "Flatten observations, actions and advantages in the same order",
    "advantages-one-late": "Give each sample its own advantage: an index is off by one step",
    "advantages-one-early": "Give each sample its own advantage: an index is off by one step",
    "wrong-axis": "Take mean and spread of the advantages over the whole batch",
    "rewards-negated": "Store the reward as the environment pays it, without a minus",
    "rewards-clipped": "Take the clip of the rewards out, or scale them instead",
    "rows-in-order": "Index the advantages with the same indices as observations and actions",
    "rows-running": "Index the advantages with the same indices as observations and actions",
    "no-baseline": "Subtract the critic's value: return − V(s), or the sum of γλ-discounted δ",
    "values-for-advantages": "Put the advantages, not the values, into the policy's loss",
}
GROUP_FIXES = {
    **dict.fromkeys(
        ("not-centred", "not-centred-scaled"),
        "Subtract the mean reward of the answers to the same prompt",
    ),
    **dict.fromkeys(
        ("groups-cut-wrongly", "groups-cut-wrongly-centred"),
        "Repeat prompts with repeat_interleave before rewards.view(-1, answers to a prompt), or cut"
        " the groups the other way",
    ),
    **dict.fromkeys(
        ("wrong-spread", "wrong-mean"),
        "Take mean and spread over the same axis: the answers to one prompt",
    ),
    "over-variance": "Divide by the spread (std), not by the variance",
    **dict.fromkeys(
        (
            f"{name}{ending}"
            for name in ("laid-out-by-answer", "laid-out-by-prompt")
            for ending in ("", "-centred")
        ),
        "Keep answers, rewards and advantages in one order: view without a transpose",
    ),
    **dict.fromkeys(
        (
            f"of-the-one-{name}{ending}"
            for name in ("before", "after")
            for ending in ("", "-centred")
        ),
        "Give each answer its own advantage: an index is off by one",
    ),
    **dict.fromkeys(
        ("moved", "moved-centred"),
        "Add nothing to the advantages: those of the answers to one prompt must add up to 0",
    ),
}


def _sections(text: str) -> dict[str, Words]:
    """Words that end with where the mathematics stands, unless they refer to something else."""
    replay = words("see: mathematics: Replay").references
    known = sections(text)
    return {name: replace(x, references=x.references or replay) for name, x in known.items()}


TARGETS = _sections(
    """
    [ends-not-masked]
    title: Targets of the value run on over the ends of episodes
    cause: The target of a transition that ended its episode must be its reward: nothing follows.
      Here the value of the next state was added to it, which belongs to another episode. Values
      grow without a bound, and failing costs nothing.
    fix: Multiply the value of the next state by (1 − terminated).
    confirm: Print reward and target of the samples that ended an episode: they must be equal.
    [targets-wrong]
    title: Targets of the value are not what was paid
    cause: The target of a transition that ended its episode must be its reward. Here it is
      something else, that no scale of rewards explains: a sum of the wrong sign or order, values
      and returns exchanged, rows of different samples, or a bonus that the program adds on purpose.
    fix: Compute returns as advantages + values, or r + γ·(1 − terminated)·V(next).
    fix: Index values, returns and observations with the same indices.
    confirm: Print reward and target of the samples that ended an episode: they must be equal.
    [reward-missing]
    title: The reward is not in the targets of the value
    cause: The target of a transition that ended its episode is its reward. Here it is 0, although
      something else was paid.
    fix: Add the reward of the step to the discounted value of the next state.
    fix: Look for a reward that is stored as 0 or an integer, clipped or masked away.
    confirm: Print reward and target of the samples that ended an episode: they must be equal.
    [rewards-of-others]
    title: Targets of the value have the rewards of other samples
    cause: Observations, actions and rewards of a batch must be of the same transitions. Here the
      reward in a target is the one that was paid in the row beside it: an array was rolled,
      shuffled or indexed by itself.
    fix: Index observations, actions, rewards and ends with the same indices.
    confirm: Store the number of the step beside each sample and print it with the target.
    [reward-alone]
    title: Targets of the value have no discounted future: they are the reward alone
    cause: The target of a transition that goes on is r + γ·V(next). Here it is r, in every sample:
      the discount that reaches the target is 0, or its mask says that every step ends the episode.
      Actions are valued by their next reward only.
    fix: Hand the discount of the settings on to the targets.
    fix: Look at the mask: 1 − terminated must be 1 where the episode goes on.
    confirm: Print reward and target of samples that did not end an episode: they must differ.
    [target-attached]
    title: The target of the value is trained along with it: it is not detached
    cause: The error of the value has a gradient on both sides: the next state's value is moved
      towards this one's as much as the other way round. Values shrink together, and what is paid
      late arrives slowly or never.
    fix: Detach the target, td_target.detach(), or compute it under torch.no_grad().
    confirm: Print td_target.requires_grad before the loss; it must be False.
    [output-bounded]
    title: The output of the values cannot reach their targets
    cause: The last layer of the values ends in an activation that gives only a part of all numbers,
      and most targets lie beyond it. The values stay at its edge, where hardly any gradient is
      left.
    fix: Take the activation after the last layer of the critic out; values are any number.
    fix: Or scale rewards so that returns lie where the activation reaches.
    confirm: Print the largest and the smallest value and target of a batch.
    [pairs-alike]
    title: The loss counts no token in which the answers of a pair differ
    cause: The mask of the tokens that count leaves out what makes a chosen answer another one than
      the rejected: it is inverted, or cut before the answers begin. Both have the same
      log-probability, their difference is 0 and so is the gradient.
    fix: Count the tokens of the answers and not those of the prompt (completion_mask).
    confirm: Print the tokens that the mask keeps of one chosen and one rejected answer.
    see: arXiv 2305.18290 (DPO)
    [clip-largest]
    title: The clip of the ratio bounds nothing: the larger of both objectives is taken
    cause: Of the objective and its clipped twin PPO takes the smaller one, so that nothing is
      gained by going further than the clip. Here the larger one counts: the clip holds back no
      sample, and steps back to the old policy are not made. A loss whose sign is wrong as a whole
      looks the same.
    fix: -torch.min(ratio * advantage, clipped * advantage), or torch.max of the negated ones.
    confirm: Log the largest ratio of an update: it leaves the clip's range further and further.
    see: arXiv 1707.06347
    [actor-sampled]
    title: The actor's loss does not go through its critic: actions are drawn without their gradient
    cause: The actor's loss has what the critic thinks of its actions, and no gradient comes back
      from there: actions were drawn with sample, or detached. Only the term of the entropy moves
      the actor, away from what is paid.
    fix: Draw with rsample() where the actor is trained, and do not detach the action.
    confirm: Print action.requires_grad before the critic is asked for the actor's loss; it must be
      True.
    """
)
"""What the meter proves of targets and losses, by the recipe it noted."""
VAGUE, CLIP = "targets-wrong", "clip-largest"
"""What a replay may tell better: whether it is the sign of the whole loss."""
TARGET_FIXES = {
    "gamma-zero": "Set the discount (gamma): 0.99 is usual",
    "gamma-above-one": "Set the discount (gamma) to 1 or less: 0.99 is usual",
    "reward-missing": "Add the reward of the step to the discounted value of the next state",
    "reward-one-late": "Store what a step paid beside the observation that it began with",
    "reward-one-early": "Store what a step paid beside the observation that it began with",
    "reward-negated": "Add the reward, do not subtract it: r + γ·(1 − terminated)·Q(next)",
    "target-worst": "Take the largest value over the actions: max(1).values, argmax",
    "same-action": (
        "Take the best action of the next state (max over actions), not the one that is stored"
    ),
    "double-exchanged": (
        "Choose with the online network and evaluate with the target network:"
        " target(next).gather(1, online(next).argmax(1, keepdim=True))"
    ),
    "online": "Ask the target network of the next observations, under no_grad",
    "ends-not-masked": "Multiply the value of the next state by (1 − terminated)",
    "twins-largest": "Take the minimum of both target critics: torch.min(q1_next, q2_next)",
    "twins-mean": "Take the minimum of both target critics: torch.min(q1_next, q2_next)",
    "twins-one": "Take the minimum of both target critics: torch.min(q1_next, q2_next)",
    "entropy-added": "Subtract the term: min_q_next − alpha * next_log_prob",
    "entropy-missing": (
        "Subtract alpha * next_log_prob from the value of the next state; leave it out only if that"
        " is meant (backup_entropy=False)"
    ),
    "tanh-missing": (
        "Subtract log(1 − tanh(u)²), summed over actions, from the log-probability of u"
    ),
}
"""By recipe of a target that is wrong."""
MILDER = ("twins-mean", "double-exchanged", "entropy-missing")
"""Some papers do this on purpose."""
SAID = _sections(
    """
    [groups]
    cause: Advantages were computed again from the rewards of the answers and the prompts they
      belong to, by the right recipe and by those people write by mistake. What the update really
      gave to each answer is what {recipe} gives, and not what the right recipe gives.
    confirm: Print rewards and advantages of the answers to one prompt; gradiometer replay shows
      every recipe and how much of the update it explains.
    [padding]
    cause: The program has a mask of the tokens that count, and tokens outside it are pushed up and
      down like the others. What was generated after the end, or the prompt, is trained.
    fix: Multiply the loss of each token by the mask before it is summed, and divide by the sum of
      the mask.
    confirm: Print the gradient of the loss by the log-probabilities times (1 − mask): it must be 0.
    [lengths]
    cause: The settings name how the loss is averaged over tokens and answers, and the update is
      that of the other way. Averaged within each answer, long ones count less for each token; over
      all tokens, long answers count more.
    fix: Average as the settings say, or change the setting.
    confirm: Print the gradient of the loss by the log-probabilities of a short and a long answer
      with the same advantage.
    [targets]
    cause: Targets were put together again from the rewards and from what the networks of this
      training said of the next observations. What the values are trained towards is what the recipe
      {recipe} gives, to the last digit.
    confirm: Print targets, rewards and what the networks say of the next observations for one
      batch; gradiometer replay shows every recipe and how much of the targets it explains.
    [discount]
    cause: The discount is what the value of the next state is multiplied with in the targets,
      fitted to rewards and to what the networks said of the next observations. The settings name
      another one, which is not used there.
    fix: Hand the discount of the settings on to the targets, or change the setting.
    confirm: Print the discount where the targets are computed.
    [traces]
    cause: The program sets a trace decay (λ of GAE), and the advantages of the update end with the
      next step, as with a decay of 0. What is paid later reaches an action through the critic
      alone.
    fix: Carry the running sum on: last = delta + gamma * lam * (1 − done) * last.
    fix: If one step is meant, take the setting out, or set it to 0.
    confirm: Print advantage, δ and the advantage after it for three steps of an episode; A_t −
      γλ·A_{t+1} must be δ_t.
    see: arXiv 1506.02438
    see: mathematics: Replay
    [values]
    cause: The target of a value is what is paid from its state on, and here it is something else.
      A baseline like that does not follow the returns, and advantages are made of it.
    fix: Train the value towards returns = advantages + values of the rollout, or r + γ·V(next).
    confirm: Print values and targets at the start and at the end of a long episode; both must fall
      as its end comes near.
    [no-discount]
    cause: The program sets the discount to 0, so an action is credited with its own reward alone.
      Here every action is given the same, whatever came of it.
    fix: Set the discount (gamma): 0.99 is usual.
    confirm: Print the returns of one episode; they must fall towards its end where each step pays.
    """
)
BARE = ("returns", "no-baseline")
"""Without a baseline the update is noisy, not wrong."""
NOTHING_KEPT = (
    "no rollout with its credit in this run: gradiometer run keeps some where a script steps a"
    " gymnasium environment and trains on what it did there"
)
NOTHING_FITS = "no recipe, right or wrong, explains the updates that were kept"
SIGN = "Turn the sign: the loss is −(log-prob × advantage), which the optimizer makes small"


@rule(
    "recipe-mismatch",
    """
    cause: Advantages were computed again from what the environment paid and the critic said, by
      the right recipe and by those people write by mistake. What the update really gave to each
      action is what {recipe} gives, and not what the right recipe gives.
    confirm: Print the advantages of one episode beside those computed by hand from its rewards;
      gradiometer replay shows every recipe and how much of the update it explains.
    see: mathematics: Replay
    """,
)
def recipe_mismatch(run: RunData) -> Verdict:
    """A wrong recipe explains the credit of the first epoch, and no right one does; or the targets
    of values are not what was paid."""
    told = known_events(run, "recipe-mismatch")
    known = [each for each in told if each.detail.get("recipe") in TARGETS]
    if number(run.fact(*GAMMA)) == 0.0:  # as it is meant
        known = [each for each in known if each.detail["recipe"] != "reward-alone"]
    plain = [each for each in known if each.detail["recipe"] not in (VAGUE, CLIP)]
    if plain:
        return _noted(plain[-1])
    targets = replayed_targets(run)
    draft = (None if targets is None else _of_targets(targets, run)) or _of_values(run)
    if draft is not None:
        return draft
    if vague := [each for each in known if each.detail["recipe"] == VAGUE]:
        return _noted(vague[-1])
    if (groups := replayed_groups(run)) is not None:
        return _of_groups(groups, set_lengths(run))
    # credit is told apart by observations: beside other ones it is of other samples
    beside = any(known_events(run, id) for id in ("misaligned-data", "score-not-zero-mean"))
    found = None if beside else replayed(run)
    if found is not None and found.wrong is not None:
        return _of_advantages(found, found.wrong)
    if known:
        return _noted(known[-1])
    if (draft := _of_settings(run)) is not None:
        return draft
    checked = any(each is not None and each.checked for each in (found, targets))
    if checked or looked(run, "recipe-mismatch"):
        return None
    return Skipped(why=NOTHING_KEPT if found is None and targets is None else NOTHING_FITS)


def _noted(event: Event) -> Draft:
    said = TARGETS[event.detail["recipe"]]
    draft = proved_finding(event, Way(title=said.title, words=said))
    if event.detail["recipe"] != VAGUE:
        return draft
    # a bonus of the program's own looks the same: what becomes of the run tells them apart
    return replace(draft, severity=None, strength="strong", basis="statistical")


def _replayed(title: str, table: str, reading: str, said: str | None = None, **more: Any) -> Draft:
    """What was computed again from a table of the run; it was so from the start."""
    evidence = Evidence(series=table, reading=reading)
    own = None if said is None else SAID[said]
    return proof(title, evidence, since_step=0, words=own, **more)


def _explains(found: ReplayedRecipes | ReplayedGroups, wrong: Fit | GroupFit) -> str:
    right = 0.0 if found.right.flipped else found.right.r2
    return (
        f"Advantages {said(wrong)} explain {wrong.r2:.1%} of this update, as they should be"
        f" {right:.1%}"
    )


def _of_advantages(found: ReplayedRecipes, wrong: Fit) -> Draft:
    """A wrong recipe that explains the update."""
    title, right = _explains(found, wrong), 0.0 if found.right.flipped else found.right.r2
    if right >= limits.nearly:
        title = (
            f"Advantages {said(wrong)}: exact on {found.samples} samples, as they should be they"
            f" are off by {(1.0 - right) ** 0.5:.1%} of their spread"
        )
    return _replayed(
        title,
        TABLE,
        f"{found.samples} samples of first epochs; R² on the half that was held back",
        severity="warn" if wrong.recipe.name in BARE and not wrong.flipped else "critical",
        fix=(SIGN if wrong.flipped else FIXES.get(wrong.recipe.name, FIXES["no-baseline"]),),
        recipe=said(wrong),
    )


def _of_values(run: RunData) -> Draft | None:
    """What values are trained towards, where it is exactly something else than a return."""
    values = replayed_values(run)
    if values is None or values.wrong is None:
        return None
    off = (1.0 - max(values.right.r2, 0.0)) ** 0.5
    return _replayed(
        f"Values are trained towards {values.wrong.recipe.words}: exact on {values.samples}"
        f" samples, returns are off by {off:.1%} of their spread",
        TABLE,
        f"{values.samples} samples of first backward calls",
        "values",
    )


def _of_settings(run: RunData) -> Draft | None:
    """What the program's own settings say, and the update does not have; or has, and should not."""
    if (lost := lost_traces(run)) is not None:
        return _replayed(
            f"Advantages have no trace decay, the program sets {lost.decay:g}: without one they"
            f" explain {lost.r2:.1%} of this update, with it {lost.r2_set:.1%}",
            TABLE,
            f"{lost.samples} samples of first epochs",
            "traces",
            severity="warn",
        )
    alike = is_credited_alike(run) if seen_setting(run, "gamma") == 0.0 else None
    if alike is None:
        return None
    reading = f"{alike} samples of first epochs, and what each was given"
    title = f"The discount is 0, and all of {alike} samples were given the same"
    return _replayed(title, TABLE, reading, "no-discount")


def _of_groups(found: ReplayedGroups, expected: Lengths | None) -> Draft | None:
    reading = f"{found.samples} answers of first passes, and what each was given"
    if (wrong := found.wrong) is not None:
        fix = SIGN if wrong.flipped else GROUP_FIXES[wrong.recipe.name]
        title, recipe = _explains(found, wrong), said(wrong)
        return _replayed(title, GROUPS, reading, "groups", fix=(fix,), recipe=recipe)
    if expected is not None and found.weighs_otherwise(expected):
        other = "tokens" if expected == "answers" else "answers"
        title = (
            f"Long and short answers weigh otherwise than set: {other} that weigh the same explain"
            f" {found.right.r2:.1%} of this update, {expected} {found.by_lengths[expected]:.1%}"
        )
        return _replayed(title, GROUPS, reading, "lengths")
    if not found.is_on_padding:
        return None
    assert found.on_padding is not None
    title = f"{found.on_padding:.0%} of those outside the mask have a gradient"
    return _replayed(f"Tokens that do not count are trained: {title}", GROUPS, reading, "padding")


def _of_targets(found: ReplayedTargets, run: RunData) -> Draft | None:
    """A recipe that is wrong, or a discount that is not that of the settings."""
    wrong = found.wrong
    reading = (
        f"{found.samples} samples with what was said of their next observations; R² on the half"
        " that was held back"
    )
    # the settings may say that the entropy is left out
    meant = run.fact("backup_entropy") in (False, "False")
    if wrong is not None and not (wrong.recipe.name == "entropy-missing" and meant):
        return _replayed(
            f"Targets {wrong.recipe.words}: exact on {found.samples} samples{_beside(found)}",
            TARGET_BATCHES,
            reading,
            "targets",
            severity="warn" if wrong.recipe.name in MILDER else "critical",
            fix=(TARGET_FIXES[wrong.recipe.name],),
            recipe=f"“{wrong.recipe.words}”",
        )
    made, expected = found.made_by, set_discount(run)
    if expected is None and (seen := seen_setting(run, "gamma")) is not None and seen > 0.0:
        expected = seen
    if made is None or expected is None or abs(made.gamma - expected) <= limits.near_discount:
        return None
    title = f"Targets have a discount of {made.gamma:.4g}, the settings say {expected:g}"
    severity = "info" if abs(made.gamma - 1.0) <= limits.near_discount else "warn"
    return _replayed(title, TARGET_BATCHES, reading, "discount", severity=severity)


def _beside(found: ReplayedTargets) -> str:
    """How far off the right recipe is, where it could be fitted beside the wrong one."""
    right = found.right
    if right is None or right not in found.fits:
        return ""
    return f", the right recipe is off by {min(right.left, 1.0) ** 0.5:.1%} of their spread"


def said(fit: Fit | GroupFit | TargetFit) -> str:
    """A recipe in words."""
    if not fit.flipped:
        return fit.recipe.words
    return "of the opposite sign" + ("" if fit.recipe.right else f", {fit.recipe.words}")
