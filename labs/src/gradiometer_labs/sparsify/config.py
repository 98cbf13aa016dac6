"""What the sparsify lab can be told, under the names its source has for it; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from gradiometer.errors import UsageError
from gradiometer_labs.config import LabConfig, SettingsCheck, TrainingProgress

__all__ = [
    "ALGORITHMS",
    "BACKBONES",
    "BASELINES",
    "CREDITS",
    "BaselineConfig",
    "Config",
    "CreditConfig",
    "CurriculumConfig",
    "GaeConfig",
    "GraphModelConfig",
    "PPOConfig",
    "ProblemConfig",
    "SolverConfig",
    "TemperatureConfig",
    "TrainingProgress",
]

ALGORITHMS = ("reinforce", "ppo")
BACKBONES = ("gcn", "graphsage", "gin")
BASELINES = ("exponential_moving", "learned", "rollout_mean", "none")
CREDITS = ("rollout", "row")
SMALLEST_GRID, LARGEST_GRID = 4, 512
CORNER = {8: 3, 4: 2}
"""Connections of a corner of the grid, by those of a point inside it: no row can choose more than
these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemConfig:
    """`problem.*`: anisotropic diffusion on a square grid, each sample with an angle and an ε of
    its own."""

    grid_size: int = 32
    """Points on a side; the matrix has the square of that many rows."""
    degree: int = 8
    """Connections of a row inside the grid: 8 for a strong direction at any angle, 4 for one along
    an axis."""
    num_samples: int = 150
    """Problems that are trained on, made once; an epoch sees each of them."""
    epsilon_min: float = 1e-3
    """Diffusion across the strong direction is between these two times that along it, evenly in the
    logarithm."""
    epsilon_max: float = 1e-1
    """See epsilon_min."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "problem.")
        check.between(SMALLEST_GRID, LARGEST_GRID, "grid_size")
        if self.degree not in CORNER:
            raise UsageError(
                f"problem.degree={self.degree}: use 8 (any angle) or 4 (along the axes)"
            )
        check.at_least(1, "num_samples")
        if not 0 < self.epsilon_min <= self.epsilon_max <= 1:
            found = (
                f"problem.epsilon_min={self.epsilon_min} and problem.epsilon_max={self.epsilon_max}"
            )
            raise UsageError(f"{found}: use 0 < epsilon_min <= epsilon_max <= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverConfig:
    """`solver.*`: the multigrid solver whose convergence is the reward."""

    levels: int = 2
    """Grids, the given one among them; the choice makes the first coarse one, PyAMG's own rule all
    below."""
    cycles: int = 2
    """V-cycles that are measured."""
    smoothing: int = 20
    """Sweeps that make the initial error smooth: what relaxation cannot remove is what a coarse
    grid is for."""
    vectors: int = 8
    """Errors that are reduced side by side; the reward is their mean."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "solver.")
        check.at_least(2, "levels")
        check.at_least(1, "cycles", "vectors")
        check.at_least(0, "smoothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphModelConfig:
    """`model.*`: the graph network."""

    backbone: str = "graphsage"
    """How neighbours are heard: gcn, graphsage or gin."""
    hidden_size: int = 32
    """Width."""
    num_layers: int = 2
    """Rounds of message passing."""
    separate_value: bool = True
    """Whether the value head looks at the problem itself; false puts it on top of the policy's
    trunk."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "model.")
        check.one_of(BACKBONES, "backbone")
        check.at_least(1, "hidden_size", "num_layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineConfig:
    """`baseline.*`: what is subtracted from a reward."""

    type: str = "learned"
    """exponential_moving (of all rewards), learned (a value head, averaged with the problem's other
    rollouts), rollout_mean (those alone) or none."""
    momentum: float = 0.95
    """Share of its past that the moving average keeps at each reward."""
    var_momentum: float = 0.99
    """The same for the moving variance of the rewards about it."""
    normalize: bool = True
    """Divide advantages by their moving standard deviation."""
    warmup_steps: int = 100
    """The first so many rewards are averaged evenly: a moving average would remember the very first
    too long."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "baseline.")
        check.one_of(BASELINES, "type")
        for name in ("momentum", "var_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(
                    f"baseline.{name}={getattr(self, name)}: use a number from 0 up to but not 1"
                )
        check.at_least(0, "warmup_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig:
    """`credit.*`: reward shaping, what a row's choice is paid by.

    A reward is one number for the choices of all rows, 16,384 of them on a grid of 128 × 128: the
    share of it that one row's choice made drowns in those of the others. The solver knows more:
    where on the grid an error became smaller.
    """

    type: str = "rollout"
    """rollout (every row gets its rollout's reward) or row (each gets what became of the error
    around it)."""
    window: int = 5
    """Points on a side of the square around a row that its error is summed over."""
    cycles: int = 1
    """V-cycles after which credit is given: feedback long before the reward has its ten."""
    smoothing: int = 20
    """Sweeps that make these errors smooth; see solver.smoothing."""
    vectors: int = 4
    """Errors that are reduced side by side."""
    reward_weight: float = 0.0
    """How much the rollout's own advantage counts beside the row's, both normalised alike."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "credit.")
        check.one_of(CREDITS, "type")
        check.at_least(1, "window", "cycles", "vectors")
        check.at_least(0, "smoothing", "reward_weight")
        if self.window % 2 == 0:
            raise UsageError(
                f"credit.window={self.window}: use an odd number, the row in its middle"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GaeConfig:
    """`gae.*`: advantages of single choices; a rollout is an episode of k steps."""

    lam: float | None = None
    """λ of GAE; null gives all choices of a rollout the same advantage."""
    gamma: float = 1.0
    """Discount from one choice to the next."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "gae.")
        check.between(0, 1, "gamma")
        if self.lam is not None:
            check.between(0, 1, "lam")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumConfig:
    """`curriculum.*`: small grids first; the network is the same on every grid."""

    start_size: int | None = None
    """Points on a side in the first updates, doubled stage by stage up to problem.grid_size; null
    trains on that alone."""
    share: float = 0.5
    """Of the updates that belong to the smaller grids, as many to each of them."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "curriculum.")
        if self.start_size is not None:
            check.between(SMALLEST_GRID, LARGEST_GRID, "start_size")
        check.between(0, 1, "share")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureConfig:
    """`temperature.*`: what logits are divided by, when sampling and in the log-probabilities
    alike."""

    initial: float = 1.0
    """In the first epoch."""
    anneal_factor: float = 1.0
    """Times this in each further epoch."""
    min_temperature: float = 0.5
    """It never falls below this."""

    def __post_init__(self) -> None:
        SettingsCheck(self, "temperature.").above_zero(
            "initial", "anneal_factor", "min_temperature"
        )

    def at(self, epoch: int) -> float:
        """τ = max(min_temperature, initial · anneal_factor^epoch); the first epoch is number 0."""
        return max(self.min_temperature, self.initial * self.anneal_factor**epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    """`ppo.*`: used when algorithm=ppo."""

    epochs: int = 4
    """Passes over the rollouts of an update, an optimizer step each."""
    clip: float = 0.2
    """How far a row's probability ratio may leave 1 and still be paid for."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "ppo.")
        check.at_least(1, "epochs")
        check.above_zero("clip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LabConfig):
    """What `gradiometer train sparsify key=value ...` can change."""

    steps: int | None = None
    """Updates; null trains `epochs` epochs."""
    epochs: int = 4
    """Passes over the problems, where steps is null."""
    batch_size: int = 4
    """Problems of one forward pass."""
    accumulate: int = 1
    """Forward passes whose gradients are averaged into one update: the study's remedy is 4 to 8
    problems."""
    rollouts: int = 4
    """Choices that are drawn and measured for each problem."""
    k: int = 2
    """Strong connections of a row, drawn one after the other without putting back."""
    algorithm: str = "reinforce"
    """reinforce or ppo."""
    learning_rate: float = 1e-2
    """Adam's step size."""
    entropy_coef: float = 0.002
    """Weight of the mean entropy of a row's choice."""
    vf_coef: float = 0.5
    """Weight of the value loss, where the baseline is learned."""
    grad_clip: float = 1.0
    """Gradients longer than this are cut to it; 0 never cuts."""
    normalize_reward: bool = False
    """Divide rewards by their running standard deviation before anything is learned from them."""
    val_size: int = 8
    """Problems nobody trains on, solved after each epoch; 0 leaves it out."""
    problem: ProblemConfig = field(default_factory=ProblemConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    model: GraphModelConfig = field(default_factory=GraphModelConfig)
    baseline: BaselineConfig = field(default_factory=BaselineConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    gae: GaeConfig = field(default_factory=GaeConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    every: int = 1
    """The meter measures one optimizer step in this many."""

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        check = SettingsCheck(self)
        check.at_least(1, "steps", "epochs", "batch_size", "accumulate", "rollouts", "k")
        check.at_least(0, "val_size")
        check.one_of(ALGORITHMS, "algorithm")
        check.above_zero("learning_rate")
        check.from_zero("entropy_coef", "vf_coef", "grad_clip")
        most = CORNER[self.problem.degree]
        if self.k > most:
            raise UsageError(
                f"k={self.k}: a corner of the grid has {most} connections, choose at most those"
            )
        if self.baseline.type == "rollout_mean" and self.rollouts < 2:
            raise UsageError(
                f"baseline.type=rollout_mean with rollouts={self.rollouts}: use 2 rollouts or more"
            )
        if self.credit.type == "row" and self.rollouts < 2:
            raise UsageError(
                f"credit.type=row with rollouts={self.rollouts}: a row is compared with itself in"
                " other rollouts, use 2 or more"
            )
        if self.gae.lam is not None:
            self._check_gae()
        start = self.curriculum.start_size
        if start is not None and start > self.problem.grid_size:
            raise UsageError(
                f"curriculum.start_size={start} is above problem.grid_size="
                f"{self.problem.grid_size}: start with a smaller grid"
            )
        if self.problems_per_update > self.problem.num_samples:
            wanted = (
                f"batch_size={self.batch_size} × accumulate={self.accumulate} ="
                f" {self.problems_per_update} problems"
            )
            raise UsageError(
                f"{wanted} of an update are more than"
                f" problem.num_samples={self.problem.num_samples}"
            )

    def _check_gae(self) -> None:
        """GAE needs a value head that sees choices, and advantages of whole rollouts."""
        for key, wanted in (
            ("baseline.type", "learned"),
            ("credit.type", "rollout"),
            ("model.separate_value", True),
        ):
            found = attrgetter(key)(self)
            if found != wanted:
                raise UsageError(
                    f"gae.lam={self.gae.lam} with {key}={str(found).lower()}: use"
                    f" {key}={str(wanted).lower()}"
                )

    @property
    def problems_per_update(self) -> int:
        """All different."""
        return self.batch_size * self.accumulate

    @property
    def updates_per_epoch(self) -> int:
        """Whole ones: problems that do not fill an update wait for the next shuffle."""
        return self.problem.num_samples // self.problems_per_update

    @property
    def updates(self) -> int:
        """Of the whole training."""
        return self.epochs * self.updates_per_epoch if self.steps is None else self.steps

    @property
    def grid_sizes(self) -> tuple[int, ...]:
        """Of the curriculum, the last is problem.grid_size."""
        sizes, last = [self.curriculum.start_size or self.problem.grid_size], self.problem.grid_size
        while 2 * sizes[-1] < last:
            sizes.append(2 * sizes[-1])
        return tuple(sizes) if sizes[-1] == last else (*sizes, last)

    def grid_size_at(self, update: int) -> int:
        """Of the problems of that update."""
        smaller = len(self.grid_sizes) - 1
        updates = self.updates * self.curriculum.share / smaller if smaller else 0.0
        stage = smaller if updates == 0 else min(smaller, int(update / updates))
        return self.grid_sizes[stage]
