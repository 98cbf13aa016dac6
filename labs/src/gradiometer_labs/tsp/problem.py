"""The problems a policy can be trained on: what an instance is, what may be chosen, and what a tour
is worth.

Shapes: B instances of N cities, n rollouts of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from gradiometer.errors import MissingExtra, UnknownName, UsageError

__all__ = ["NUM_SYMMETRIES", "PROBLEMS", "TourProblem", "check_instances", "find", "tour_lengths"]

NUM_SYMMETRIES = 8
_GRID = 10_000_000  # LKH reckons in whole numbers: the unit square in steps of 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class TourProblem:
    """A problem as data, of plain functions, so that a policy can be sent to other processes.

    The first place of a rollout is given; the policy chooses the others among the open ones.
    """

    name: str
    summary: str
    num_features: int
    """Numbers that describe one place of an instance."""
    generate: Callable[[int, int, Generator | None], Tensor]
    """(num, num_loc, generator) -> instances [num, N, F], on the CPU."""
    starts: Callable[[Tensor, int], Tensor]
    """(instances, n) -> where each rollout begins, [B, n]."""
    num_choices: Callable[[int], int]
    """num_loc -> how often the policy chooses."""
    closed: Callable[[Tensor, Tensor], Tensor]
    """(instances, starts) -> what may not be chosen first, bool [B, n, N]."""
    close: Callable[[Tensor, Tensor], Tensor]
    """(closed, choice [B, n]) -> what may not be chosen next, bool [B, n, N]."""
    reward: Callable[[Tensor, Tensor], Tensor]
    """(instances, tours [B, n, T]) -> [B, n]; more is better."""
    symmetries: Callable[[Tensor], Tensor]
    """Instances with the same best reward, the given ones first: [B, N, F] -> [8, B, N, F]."""
    reference: Callable[[Tensor], Tensor]
    """The rewards of a solver, [B]."""
    best_mean: Callable[[int], float]
    """num_loc -> the mean over instances of the best reward; nobody earns more in the long run."""


def uniform_cities(num: int, num_loc: int, generator: Generator | None) -> Tensor:
    """Uniform in the unit square."""
    return torch.rand(num, num_loc, 2, generator=generator)


def first_cities(instances: Tensor, num_starts: int) -> Tensor:
    """Rollout i begins at city i, and from the first again when there are more rollouts than
    cities."""
    num, num_loc, _ = instances.shape
    return (torch.arange(num_starts, device=instances.device) % num_loc).expand(num, num_starts)


def none_but(instances: Tensor, starts: Tensor) -> Tensor:
    """Closed: where one is."""
    num, num_loc, _ = instances.shape
    nothing = torch.zeros(num, starts.shape[1], num_loc, dtype=torch.bool, device=instances.device)
    return visited(nothing, starts)


def visited(closed: Tensor, choice: Tensor) -> Tensor:
    """Closed: where one has been."""
    return closed.scatter(-1, choice.unsqueeze(-1), True)


def tour_lengths(instances: Tensor, tours: Tensor) -> Tensor:
    """The lengths of closed tours, [B, N, 2] and [B, n, N] -> [B, n]."""
    places = instances.unsqueeze(1).expand(-1, tours.shape[1], -1, -1)
    along = places.gather(2, tours.unsqueeze(-1).expand(-1, -1, -1, 2))
    legs: Tensor = torch.linalg.vector_norm(along - along.roll(-1, 2), dim=-1)
    return legs.sum(-1)


def shortness(instances: Tensor, tours: Tensor) -> Tensor:
    """Minus the length."""
    return -tour_lengths(instances, tours)


def all_but_the_start(num_loc: int) -> int:
    """Every other city is chosen, the last one of necessity."""
    return num_loc - 1


def square_symmetries(instances: Tensor) -> Tensor:
    """The square's eight: each axis turned round or not, then the axes exchanged or not."""
    x, y = instances.unbind(-1)
    turned = [(a, b) for a in (x, 1 - x) for b in (y, 1 - y)]
    return torch.stack([torch.stack(pair, -1) for a, b in turned for pair in ((a, b), (b, a))])


def shortest_tours(instances: Tensor) -> Tensor:
    """Minus the lengths of the tours that LKH finds, [B]; on 20 cities they are the shortest in all
    that is known."""
    try:
        import elkai
    except ModuleNotFoundError as error:
        raise MissingExtra("elkai", "bench", "the reference of the tsp lab") from error
    cities = instances.detach().cpu().double()
    distances = (torch.cdist(cities, cities) * _GRID).round().long()
    # The solver walks back to where it began; the tour here ends a city before
    tours = [elkai.DistanceMatrix(each).solve_tsp()[:-1] for each in distances.tolist()]
    return -tour_lengths(cities, torch.tensor(tours).unsqueeze(1)).squeeze(1).to(instances)


def mean_of_shortest(num_loc: int) -> float:
    """Minus the mean length of shortest tours: 0.7124 √N of the plane (Johnson and McGeoch 1996),
    and what the border adds.

    Fitted to `shortest_tours` of thousands of instances: within 1 % from 4 to 100 cities.
    """
    return -(0.7124 * math.sqrt(num_loc) + 0.66 - 3 / num_loc**2)


PROBLEMS: dict[str, TourProblem] = {
    problem.name: problem
    for problem in (
        TourProblem(
            name="tsp",
            summary="the shortest closed tour through cities that lie uniformly in the unit square",
            num_features=2,
            generate=uniform_cities,
            starts=first_cities,
            num_choices=all_but_the_start,
            closed=none_but,
            close=visited,
            reward=shortness,
            symmetries=square_symmetries,
            reference=shortest_tours,
            best_mean=mean_of_shortest,
        ),
    )
}


def find(name: str) -> TourProblem:
    """The problem of that name."""
    if name not in PROBLEMS:
        raise UnknownName(
            "problem", name, PROBLEMS, hint=f"The problems are: {', '.join(PROBLEMS)}."
        )
    return PROBLEMS[name]


def check_instances(problem: TourProblem, instances: Tensor) -> None:
    """One error for instances the problem does not have."""
    if instances.dim() != 3 or instances.shape[-1] != problem.num_features:
        raise UsageError(
            f"instances of {problem.name} are [num, num_loc, {problem.num_features}]; found"
            f" {list(instances.shape)}"
        )
