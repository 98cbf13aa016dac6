"""The parts of the sparsify lab, each against what can be counted or worked out by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradiometer_labs.sparsify import sampling
from gradiometer_labs.sparsify.baseline import Baseline, Explained, MovingMoments, RunningScale
from gradiometer_labs.sparsify.config import (
    BACKBONES,
    BaselineConfig,
    Config,
    CreditConfig,
    CurriculumConfig,
    GraphModelConfig,
    ProblemConfig,
    SolverConfig,
)
from gradiometer_labs.sparsify.gae import gae, log_probs_by_step, values_by_step
from gradiometer_labs.sparsify.model import SparsifyNet
from gradiometer_labs.sparsify.pieces import row_advantages_of
from gradiometer_labs.sparsify.problem import (
    DiffusionProblem,
    Graph,
    batch_of,
    graph_of,
    make_problem,
    make_problems,
)
from gradiometer_labs.sparsify.sampling import NEVER
from gradiometer_labs.sparsify.solver import Solver, hierarchy_of, relaxed, strength_of

SMALL = ProblemConfig(grid_size=8)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits_of(*rows: list[float]) -> Tensor:
    return torch.tensor([rows], dtype=torch.float64)  # one problem


def odds(row: list[float], temperature: float, k: int) -> dict[tuple[int, ...], float]:
    """Every ordered choice with its probability, one factor after the other."""
    weights = [math.exp(x / temperature) if x > NEVER / 2 else 0.0 for x in row]
    found = {}
    for chosen in itertools.permutations([i for i, w in enumerate(weights) if w > 0], k):
        left, probability = sum(weights), 1.0
        for i in chosen:
            probability *= weights[i] / left
            left -= weights[i]
        found[chosen] = probability
    return found


ROWS = ([0.3, -1.0, 2.0, 0.0], [1.5, 1.5, NEVER, -0.5], [0.0, NEVER, 0.0, 0.0])


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_log_prob_of_ordered_choices_is_that_of_drawing_without_putting_back(
    k: int, temperature: float
) -> None:
    logits = logits_of(*ROWS)
    for row, given in enumerate(ROWS):
        known = odds(given, temperature, k)
        assert sum(known.values()) == pytest.approx(1.0)
        for chosen, probability in known.items():
            choices = torch.zeros(1, 1, len(ROWS), k, dtype=torch.long)
            choices[0, 0, row] = torch.tensor(chosen)
            found = sampling.log_prob_of(logits, choices, temperature)[0, 0, row]
            assert float(found) == pytest.approx(math.log(probability), abs=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_entropy_is_that_of_all_ordered_choices(k: int, temperature: float) -> None:
    found = sampling.entropy_of(logits_of(*ROWS), k, temperature)[0].tolist()
    for row, entropy in zip(ROWS, found, strict=True):
        known = odds(row, temperature, k).values()
        assert entropy == pytest.approx(-sum(p * math.log(p) for p in known), abs=1e-9)


def test_choices_are_drawn_as_often_as_their_probability_says() -> None:
    many, temperature = 20_000, 0.7
    choices, log_probs = sampling.draw(logits_of(*ROWS).float(), 2, temperature, many, seeded(1))
    assert torch.allclose(
        log_probs, sampling.log_prob_of(logits_of(*ROWS).float(), choices, temperature)
    )
    for row, given in enumerate(ROWS):
        known = odds(given, temperature, 2)
        pairs, counts = torch.unique(choices[0, :, row], dim=0, return_counts=True)
        seen = {
            tuple(pair): count for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
        }
        assert set(seen) <= set(known)  # never a candidate that is not there, never one twice
        for pair, probability in known.items():
            spread = math.sqrt(many * probability * (1 - probability))
            assert abs(seen.get(pair, 0) - many * probability) < 5 * spread + 1


def test_the_largest_entropy_is_that_of_even_odds() -> None:
    graph = graph_of(8, 8)
    even = torch.zeros(1, *graph.mask.shape).masked_fill(~graph.mask, NEVER)
    largest = sampling.largest_entropy(graph.mask, 2)
    assert float(sampling.entropy_of(even, 2, 1.0).mean()) == pytest.approx(largest, rel=1e-5)
    inside = math.log(8 * 7)
    assert largest == pytest.approx((36 * inside + 24 * math.log(5 * 4) + 4 * math.log(3 * 2)) / 64)


def test_the_entropy_has_a_gradient_that_stays_finite_where_candidates_are_missing() -> None:
    logits = logits_of(*ROWS).requires_grad_()
    (gradient,) = torch.autograd.grad(sampling.entropy_of(logits, 2, 1.0).sum(), logits)
    assert bool(gradient.isfinite().all())
    assert float(gradient[0, 0].abs().sum()) > 0
    assert float(gradient[0, 2].abs().sum()) == pytest.approx(
        0, abs=1e-12
    )  # even odds are the maximum


def entries(problem: DiffusionProblem, graph: Graph) -> Any:
    dense = problem.matrix.toarray()
    return dense[graph.row.tolist(), graph.column.tolist()] / np.diag(dense)[graph.row.tolist()]


@pytest.mark.parametrize(("degree", "theta"), [(8, 0.4), (8, 2.5), (4, 0.0), (4, math.pi / 2)])
def test_the_graph_and_its_features_are_those_of_the_matrix(degree: int, theta: float) -> None:
    config = ProblemConfig(grid_size=6, degree=degree)
    problem, graph = make_problem(config, theta, 0.01), graph_of(6, degree)
    assert np.allclose(problem.edges[:, 2].numpy(), entries(problem, graph), atol=1e-6)
    dense = problem.matrix.toarray()
    assert np.allclose(dense, dense.T)
    assert np.linalg.eigvalsh(dense).min() > 0
    off_diagonal = int((np.abs(dense) > 1e-12).sum()) - 36
    assert off_diagonal <= len(graph.row)  # no connection of the matrix is missing
    assert graph.mask.sum(-1).max() == degree


def test_problems_are_the_same_for_a_seed_and_keep_to_their_ranges() -> None:
    config = ProblemConfig(grid_size=6, epsilon_min=0.01, epsilon_max=0.1)
    first, again = (make_problems(config, 20, np.random.default_rng(7)) for _ in range(2))
    assert [p.theta for p in first] == [p.theta for p in again]
    assert all(0.01 <= p.epsilon <= 0.1 for p in first)
    assert np.ptp([p.theta for p in first]) > 1


def chosen(
    problem: DiffusionProblem, config: ProblemConfig, k: int, *, best: bool, seed: int = 0
) -> Any:
    """The k largest entries of each row, or any k."""
    graph = graph_of(config.grid_size, config.degree)
    score = torch.full((graph.mask.numel(),), NEVER)
    score[graph.slot] = (
        problem.edges[:, 0].abs() if best else torch.rand(len(graph.slot), generator=seeded(seed))
    )
    picks = score.view(graph.mask.shape).topk(k, dim=-1).indices
    return graph.candidates.gather(-1, picks).numpy()


def test_the_reward_is_the_same_each_time_and_higher_along_the_strong_direction() -> None:
    problem = make_problem(SMALL, 0.3, 0.01)
    solver = Solver(problem, SolverConfig())
    best, random = chosen(problem, SMALL, 2, best=True), chosen(problem, SMALL, 2, best=False)
    assert (
        solver.reward(best) == solver.reward(best) == Solver(problem, SolverConfig()).reward(best)
    )
    assert solver.reward(best) > 1.5 * solver.reward(random) > 0


def test_the_reward_is_digits_over_work() -> None:
    """By hand: two cycles on one error, with matrices written out."""
    config = SolverConfig(cycles=2, vectors=1, smoothing=3)
    problem = make_problem(ProblemConfig(grid_size=5), 0.3, 0.05)
    columns = chosen(problem, ProblemConfig(grid_size=5), 2, best=True)
    hierarchy = hierarchy_of(problem.matrix, strength_of(columns))
    a, p = problem.matrix.toarray(), hierarchy.prolongations[0].toarray()
    error = np.random.default_rng(0).standard_normal((25, 1))
    jacobi = np.eye(25) - 0.7 * np.diag(1 / np.diag(a)) @ a
    for _ in range(3):
        error = jacobi @ error
    correction = np.eye(25) - p @ np.linalg.inv(p.T @ a @ p) @ p.T @ a
    after = jacobi @ correction @ jacobi @ correction @ error
    digits = np.log10(np.sqrt(error.T @ a @ error) / np.sqrt(after.T @ a @ after)).item()
    coarse = np.count_nonzero(np.abs(p.T @ a @ p) > 1e-14)
    complexity = (problem.matrix.nnz + coarse) / problem.matrix.nnz
    assert Solver(problem, config).reward(columns) == pytest.approx(
        10 * digits / (2 * complexity), rel=1e-6
    )


def test_a_hierarchy_of_more_levels_still_solves() -> None:
    config = ProblemConfig(grid_size=16)
    problem = make_problem(config, 0.3, 0.05)
    hierarchy = hierarchy_of(
        problem.matrix, strength_of(chosen(problem, config, 2, best=True)), levels=4
    )
    sizes = [matrix.shape[0] for matrix in hierarchy.matrices]
    assert len(sizes) == 4
    assert sizes == sorted(sizes, reverse=True)
    two = hierarchy_of(problem.matrix, strength_of(chosen(problem, config, 2, best=True)))
    assert hierarchy.complexity > two.complexity > 1
    start = error = relaxed(problem.matrix, np.random.default_rng(1).standard_normal((256, 2)))
    for _ in range(30):
        error = hierarchy.cycle(error)
    assert np.linalg.norm(error) < 1e-3 * np.linalg.norm(start)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_scores_do_not_depend_on_how_rows_are_numbered(backbone: str) -> None:
    """A graph network turned with the grid: transposing the grid permutes rows and candidates, and
    nothing else."""
    torch.manual_seed(0)
    model = SparsifyNet(GraphModelConfig(backbone=backbone, hidden_size=8), value_head=True)
    problem, graph = make_problem(SMALL, 0.4, 0.01), graph_of(8, 8)
    turned = make_problem(SMALL, math.pi / 2 - 0.4, 0.01)  # x and y change places
    scored = model(*batch_of([problem, turned], torch.device("cpu")), graph)
    swap_rows = torch.arange(64).view(8, 8).T.flatten()
    swap_candidates = torch.tensor([0, 3, 5, 1, 6, 2, 4, 7])
    there = graph.mask
    assert torch.allclose(
        scored.logits[1][there], scored.logits[0][swap_rows][:, swap_candidates][there], atol=1e-5
    )
    assert torch.allclose(scored.values[0], scored.values[1], atol=1e-5)
    assert bool((scored.logits[:, ~there] == NEVER).all())
    assert float(scored.logits[0][there].detach().std()) > 0


def test_a_batch_scores_each_problem_as_it_would_alone() -> None:
    torch.manual_seed(0)
    model = SparsifyNet(GraphModelConfig(hidden_size=8), value_head=False)
    problems, graph = make_problems(SMALL, 3, np.random.default_rng(0)), graph_of(8, 8)
    together = model(*batch_of(problems, torch.device("cpu")), graph)
    alone = model(*batch_of(problems[1:2], torch.device("cpu")), graph)
    assert torch.allclose(together.logits[1], alone.logits[0], atol=1e-6)
    assert together.values is None


def test_moving_moments_are_those_worked_out_by_hand() -> None:
    moments = MovingMoments(momentum=0.9, var_momentum=0.8, warmup=0)
    for number in (1.0, 2.0, 0.0):
        moments.add(number)
    # 1, then 0.9 + 0.2 = 1.1, then 0.99;  var 1, then 0.8 + 0.2 · 1² = 1, then 0.8 + 0.2 · 1.1² =
    # 1.042
    assert moments.mean == pytest.approx(0.99)
    assert moments.var == pytest.approx(1.042)


def test_the_warm_up_averages_evenly() -> None:
    moments = MovingMoments(momentum=0.95, var_momentum=0.99, warmup=4)
    for number in (2.0, 4.0, 9.0, 1.0):
        moments.add(number)
    assert moments.mean == pytest.approx(4.0)
    moments.add(24.0)  # the first after it
    assert moments.mean == pytest.approx(0.95 * 4 + 0.05 * 24)


def baseline_of(**settings: Any) -> Baseline:
    return Baseline(BaselineConfig(**settings))


def test_a_moving_average_answers_before_it_has_seen_the_rewards() -> None:
    baseline = baseline_of(type="exponential_moving", momentum=0.5, warmup_steps=0, normalize=False)
    rewards = torch.tensor([[4.0]])
    assert baseline.expected(rewards, None).tolist() == [[0.0]]
    baseline.update(rewards, torch.zeros(1, 1))
    assert baseline.expected(torch.tensor([[100.0]]), None).tolist() == [[4.0]]
    baseline.update(torch.tensor([[8.0]]), torch.zeros(1, 1))
    assert baseline.expected(rewards, None).tolist() == [[6.0]]


def test_advantages_are_divided_by_the_moving_deviation_of_rewards() -> None:
    baseline = baseline_of(
        type="exponential_moving", momentum=0.5, var_momentum=0.75, warmup_steps=0
    )
    baseline.update(torch.tensor([[1.0, 5.0]]), torch.zeros(1, 2))  # var 0.75 · 1 + 0.25 · 16
    assert float(baseline.normalised(torch.tensor([[4.75**0.5]]))) == pytest.approx(1.0)


def test_no_baseline_contains_the_reward_it_is_subtracted_from() -> None:
    rewards = torch.tensor([[1.0, 2.0, 6.0]])
    others = baseline_of(type="rollout_mean").expected(rewards, None)
    assert others.tolist() == [[4.0, 3.5, 1.5]]
    learned = baseline_of(type="learned").expected(rewards, torch.tensor([9.0], requires_grad=True))
    assert learned.tolist() == [pytest.approx([17 / 3, 16 / 3, 4.0])]
    assert not learned.requires_grad
    assert baseline_of(type="none").expected(rewards, None).tolist() == [[0.0, 0.0, 0.0]]


def test_a_leaking_average_explains_seven_per_cent_of_noise_and_an_honest_one_less_than_nothing() -> (
    None
):
    """docs/mathematics.md#baseline-leak: 0.0744 and −0.026 at a momentum of 0.95."""
    rewards = np.random.default_rng(0).standard_normal(20_000)
    moments, honest, leaking = MovingMoments(0.95, 0.99, 100), [], []
    for reward in rewards:
        honest.append(reward - moments.mean)
        moments.add(float(reward))
        leaking.append(reward - moments.mean)
    assert 1 - np.var(leaking) / np.var(rewards) == pytest.approx(0.0744, abs=0.006)
    assert 1 - np.var(honest) / np.var(rewards) == pytest.approx(-0.026, abs=0.006)


def test_explained_variance_waits_for_rewards_that_vary() -> None:
    explained = Explained()
    assert explained.add(torch.arange(8.0), torch.arange(8.0)) is None
    assert explained.add(torch.arange(8.0), torch.arange(8.0)) == pytest.approx(1.0)
    assert Explained().add(torch.ones(32), torch.arange(32.0)) is None
    half = Explained().add(torch.tensor([0.0, 2.0] * 16), torch.tensor([0.5, 1.5] * 16))
    assert half == pytest.approx(0.75)


def test_rewards_are_divided_by_the_deviation_of_all_so_far() -> None:
    scale = RunningScale()
    first = scale(torch.tensor([[2.0, 4.0]]))
    assert first.tolist() == [[pytest.approx(2 / 2**0.5), pytest.approx(4 / 2**0.5)]]
    later = scale(torch.tensor([[6.0]]))
    assert float(later) == pytest.approx(6 / 2.0)  # the deviation of 2, 4, 6


def test_credit_is_higher_where_the_strong_direction_is_chosen() -> None:
    """One half of the grid keeps its largest entries, the other chooses at random."""
    config = ProblemConfig(grid_size=16)
    problem = make_problem(config, 0.3, 0.005)
    solver = Solver(problem, SolverConfig(), CreditConfig(type="row"))
    good, bad = chosen(problem, config, 2, best=True), chosen(problem, config, 2, best=False)
    left = (np.arange(256) % 16 < 8)[:, None]
    for mixed, where in ((np.where(left, good, bad), left), (np.where(left, bad, good), ~left)):
        reward, credit = solver.earned(mixed)
        assert reward == solver.reward(mixed)
        assert credit is not None
        assert credit[where[:, 0]].mean() > 1.5 * credit[~where[:, 0]].mean()
    assert Solver(problem, SolverConfig()).earned(good)[1] is None


def test_credit_over_the_whole_grid_is_the_reward() -> None:
    """A window that sees everything alike has the reward's own digits and complexity in its
    middle."""
    config = ProblemConfig(grid_size=5)
    problem = make_problem(config, 0.3, 0.05)
    solver = Solver(
        problem,
        SolverConfig(cycles=2, vectors=1, smoothing=3),
        CreditConfig(type="row", window=5, cycles=2, vectors=1, smoothing=3),
    )
    reward, credit = solver.earned(chosen(problem, config, 2, best=True))
    assert credit is not None
    assert credit.reshape(5, 5)[2, 2] == pytest.approx(reward, rel=1e-6)


def test_a_row_is_compared_with_itself_in_the_other_rollouts() -> None:
    credits = torch.tensor([[[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]]])  # [1, 3, 2]
    advantages = torch.tensor([[10.0, 0.0, 0.0]])
    found = row_advantages_of(credits, advantages, Config(credit=CreditConfig(type="row")))
    off = torch.tensor([[[-4.5, 0.0], [-1.5, 0.0], [6.0, 0.0]]])
    assert torch.allclose(found, off / off.std())
    config = Config(credit=CreditConfig(type="row", reward_weight=0.5))
    both = row_advantages_of(credits, advantages, config)
    assert torch.allclose(both - found, 0.5 * advantages.unsqueeze(-1).expand(-1, -1, 2), atol=1e-6)


def test_gae_of_two_steps_is_that_worked_out_by_hand() -> None:
    rewards, values = torch.tensor([[3.0]]), torch.tensor([[[1.0, 2.0]]])
    # δ_0 = 0.9 · 2 − 1 = 0.8, δ_1 = 3 − 2 = 1;  Â_0 = 0.8 + 0.9 · 0.5 · 1
    assert gae(rewards, values, 0.9, 0.5).tolist() == [[pytest.approx([1.25, 1.0])]]
    assert gae(rewards, values, 1.0, 1.0).tolist() == [[pytest.approx([2.0, 1.0])]]  # r − V_t
    assert gae(rewards, values, 1.0, 0.0).tolist() == [[pytest.approx([1.0, 1.0])]]


def test_log_probs_of_single_choices_add_up_to_those_of_all() -> None:
    logits = logits_of(*ROWS)
    choices, _ = sampling.draw(logits, 3, 1.0, 4, seeded(0))
    steps = log_probs_by_step(sampling.log_prob_of, logits, choices, 1.0)
    assert steps.shape == (3, 1, 4, len(ROWS))
    assert torch.allclose(steps.sum(0), sampling.log_prob_of(logits, choices, 1.0))
    first = logits.log_softmax(-1).unsqueeze(1).expand(-1, 4, -1, -1)
    assert torch.allclose(steps[0], first.gather(-1, choices[..., :1]).squeeze(-1))


def test_a_value_after_choices_depends_on_them_and_the_first_on_the_problem_alone() -> None:
    torch.manual_seed(0)
    model = SparsifyNet(GraphModelConfig(hidden_size=8), value_head=True, sees_choices=True)
    problem, graph = make_problem(SMALL, 0.4, 0.01), graph_of(8, 8)
    nodes, edges = batch_of([problem], torch.device("cpu"))
    scored = model(nodes, edges, graph)
    choices, _ = sampling.draw(scored.logits, 2, 1.0, 3, seeded(0))
    values = values_by_step(model, edges, choices, graph)
    assert values.shape == (1, 3, 2)
    assert scored.values is not None
    assert torch.allclose(values[..., 0], scored.values.unsqueeze(1).expand(-1, 3), atol=1e-6)
    assert len(set(values[0, :, 1].tolist())) == 3


def test_a_curriculum_doubles_the_grid_stage_by_stage() -> None:
    config = Config(
        steps=12,
        problem=ProblemConfig(grid_size=40),
        curriculum=CurriculumConfig(start_size=10, share=0.5),
    )
    assert config.grid_sizes == (10, 20, 40)
    assert [config.grid_size_at(update) for update in range(12)] == [10] * 3 + [20] * 3 + [40] * 6
    plain = Config(steps=12)
    assert {plain.grid_size_at(update) for update in range(12)} == {plain.problem.grid_size}
