"""The losses of policy optimisation, token by token, and the ways to make one number of them.

Every loss here is elementwise: N sequences of T tokens in, [N, T] out, nothing reduced. How tokens
are averaged decides which sequences speak loudest, so that is separate: for every aggregation

    L = Σ_it w_it l_it / Σ_i T_i,    w = token_weights [N, T],    T = sequence_weights [N]

over any set of rows. Numerators and denominators of parts therefore add, and the loss of a bucket
does not depend on how it was cut into micro-batches.
"""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from gradiometer.errors import UsageError, check_known
from gradiometer.maths.stats import HALF

__all__ = [
    "AGGREGATIONS",
    "KL_KINDS",
    "aggregate",
    "entropy",
    "kl_loss",
    "policy_loss",
    "sequence_weights",
    "token_log_probs",
    "token_weights",
]

AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)

# The names trainers use, and the estimator each of them is.
KL_KINDS = MappingProxyType(
    {
        "k1": "k1",
        "kl": "k1",
        "k2": "k2",
        "mse": "k2",
        "k3": "k3",
        "low_var_kl": "k3",
        "low-var-kl": "k3",
    }
)

MAX_LOG_RATIO = 20.0  # e^20 is finite in every type but float16


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    clip_c: float | None = 3.0,
) -> Tensor:
    """PPO's clipped surrogate of each token [N, T], with a second clip unless `clip_c=None`.

    r = exp(clamp(log π − log π_old, ±20))
    l = max(−A r, −A clip(r, 1 − low, 1 + high)),    and where A < 0: min(l, −A c)

    The second clip bounds the loss of an action that was bad and has become far more likely.
    Reference: Schulman et al. (2017); dual clip, Ye et al. (2020), Mastering Complex Control in
    MOBA Games.
    """
    if clip_c is not None and clip_c <= 1:
        raise UsageError(
            f"clip_c bounds the ratio from above and must be more than 1, found {clip_c}; None"
            " turns it off."
        )
    ratio = (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if clip_c is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * clip_c), loss)


def kl_loss(log_probs: Tensor, ref_log_probs: Tensor, kind: str = "k3") -> Tensor:
    """KL(π‖π_ref) estimated from the sampled action of each token [N, T]; d = log π_ref − log π:

    k1 = −d,    k2 = ½ d²,    k3 = e^d − d − 1

    On-policy k1 and k3 have the mean KL(π‖π_ref), but as losses they are not alike: E[∇k1] = 0,
    E[∇k2] = ∇KL(π‖π_ref), E[∇k3] = ∇KL(π_ref‖π). Off-policy each needs the weight π/π_old, and with
    π's own gradient in that weight E[∇] of k1 and of k3 is ∇KL(π‖π_ref). verl clamps d to ±20 and
    k3 to ±10, where its gradient ends; here nothing is clamped.

    Reference: Schulman (2020), Approximating KL Divergence.
    """
    check_known("KL kind", kind, KL_KINDS)
    d = ref_log_probs - log_probs
    match KL_KINDS[kind]:
        case "k1":
            return -d
        case "k2":
            return d.square() / 2
        case _:
            return d.expm1() - d


def entropy(logits: Tensor) -> Tensor:
    """H = −Σ p log p in nats, [..., V] to [...]; a logit of −∞ is an impossible action."""
    log_p = _log_softmax(logits)
    # 0 · log 0 = 0. Filled before it is multiplied: 0 · (−∞) and its gradient would be NaN.
    return -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0.0)).sum(-1)


def token_log_probs(logits: Tensor, actions: Tensor) -> Tensor:
    """log π(a) of the actions taken: logits [..., V], actions [...] to [...]."""
    if actions.shape != logits.shape[:-1]:
        raise UsageError(
            f"every distribution needs one action, found logits {list(logits.shape)} and actions"
            f" {list(actions.shape)}."
        )
    return _log_softmax(logits).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def _log_softmax(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1, dtype=torch.float32 if logits.dtype in HALF else None)


def token_weights(mask: Tensor, aggregation: str, *, horizon: float | None = None) -> Tensor:
    """w [N, T], from a mask [N, T] that may be fractional; tokens that are masked out weigh 0.

    token-mean               m_it            every token speaks alike, so long sequences louder
    seq-mean-token-sum       m_it
    seq-mean-token-mean      m_it/Σ_t m_it   every sequence speaks alike, tokens of long ones less
    seq-mean-token-sum-norm  m_it/horizon    the width of the mask if no horizon is given

    Give the `horizon` where parts are padded to different widths, or it differs from part to part.
    """
    m = _weights_of(mask, aggregation)
    if aggregation == "seq-mean-token-mean":
        lengths = m.sum(-1, keepdim=True)
        return m / lengths.masked_fill(lengths == 0, 1.0)
    if aggregation == "seq-mean-token-sum-norm":
        width = m.shape[-1] if horizon is None else horizon
        if not width > 0:
            raise UsageError(
                f"the horizon is a number of tokens and must be above 0, found {width}."
            )
        return m / width
    return m


def sequence_weights(mask: Tensor, aggregation: str) -> Tensor:
    """T [N], what each sequence adds to the denominator: its tokens for token-mean, else 1 or 0."""
    lengths = _weights_of(mask, aggregation).sum(-1)
    return lengths if aggregation == "token-mean" else (lengths > 0).to(lengths.dtype)


def aggregate(
    losses: Tensor, mask: Tensor, aggregation: str, *, horizon: float | None = None
) -> Tensor:
    """L = Σ w l/Σ T, a scalar, of losses [N, T]; what stands at masked tokens may be NaN.

    Older versions of verl divide seq-mean-token-sum-norm by the width alone and not by the number
    of sequences; here it is the mean over sequences, as the name says.
    """
    if losses.shape != mask.shape:
        raise UsageError(
            f"losses and mask must have one shape, found {list(losses.shape)} and"
            f" {list(mask.shape)}."
        )
    weights = token_weights(mask, aggregation, horizon=horizon)
    total = sequence_weights(mask, aggregation).sum()
    if total == 0:
        raise UsageError(
            f"the mask {list(mask.shape)} is zero everywhere, so there is no loss to average: check"
            " which tokens the mask marks, or leave the batch out."
        )
    return (weights * losses.masked_fill(weights == 0, 0.0)).sum() / total


def _weights_of(mask: Tensor, aggregation: str) -> Tensor:
    """The mask as weights: float64 stays, else float32 (bfloat16 counts no tokens past 256)."""
    check_known("aggregation", aggregation, AGGREGATIONS)
    if mask.ndim != 2:
        raise UsageError(
            f"a mask is [sequences, tokens], found {list(mask.shape)}; per-sample losses are"
            " [N, 1]."
        )
    return mask if mask.dtype == torch.float64 else mask.float()
