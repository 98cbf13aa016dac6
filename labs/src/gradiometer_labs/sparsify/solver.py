"""Algebraic multigrid on the chosen connections, and how well it does for what it costs: the
reward.

PyAMG splits the grid into coarse and fine points along the chosen connections (Ruge and Stüben) and
interpolates from them; coarser levels follow its own rule. Relaxation removes what oscillates, so
the measured error is smooth to begin with, and only a good coarse grid reduces it.

    reward = 10 · mean over errors of log10(‖e_before‖_A / ‖e_after‖_A) / (cycles · complexity)

is the number of decimal digits gained by work that costs as much as ten cycles on the given grid
alone; the complexity is that of the operators. Shapes: N rows, V errors side by side, k choices of
a row. Reference: Ruge & Stüben (1987), Algebraic Multigrid; Brandt (1986) for ‖·‖_A and
algebraically smooth errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from pyamg import ruge_stuben_solver
from pyamg.classical import split
from pyamg.classical.interpolate import direct_interpolation
from scipy.ndimage import uniform_filter
from scipy.sparse import csr_array
from scipy.sparse.linalg import splu

from gradiometer_labs.sparsify.config import CreditConfig, SolverConfig
from gradiometer_labs.sparsify.problem import DiffusionProblem

__all__ = ["WORK", "Hierarchy", "Solver", "hierarchy_of", "strength_of"]

Array = np.ndarray[Any, np.dtype[Any]]

WORK = 10.0
"""Cycles on the given grid whose work is the reward's unit."""
LEAST_ENERGY = 1e-3
"""Energy around a row, relative to the mean over rows, below which no more credit is given."""
RELAXATION = 0.7
"""Damping of Jacobi's relaxation; 2/3 to 4/5 smooths (Trottenberg et al., section 2.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Grids from fine to coarse."""

    matrices: list[csr_array]
    prolongations: list[csr_array]
    """One fewer: from each coarse grid to the one above it."""
    solve: Any
    """On the coarsest grid, directly."""
    coarse_points: Array
    """Which rows of the given matrix are points of the first coarse grid too, bool [N]."""

    @property
    def complexity(self) -> float:
        """Entries of all matrices over those of the given one."""
        return float(sum(matrix.nnz for matrix in self.matrices) / self.matrices[0].nnz)

    def cycle(self, error: Array, level: int = 0) -> Array:
        """One V-cycle for A e = 0, relaxing after the coarse grid's correction: [N, V] -> [N,
        V]."""
        matrix, prolongation = self.matrices[level], self.prolongations[level]
        residual = prolongation.T @ (matrix @ error)
        return relaxed(matrix, error - prolongation @ self._solved(residual, level + 1))

    def _solved(self, right: Array, level: int) -> Array:
        """An approximate solution of A_level x = right; exact on the coarsest grid."""
        if level == len(self.prolongations):
            solution: Array = self.solve(right)
            return solution
        matrix, prolongation = self.matrices[level], self.prolongations[level]
        start = RELAXATION * right / matrix.diagonal()[:, None]
        coarse = self._solved(prolongation.T @ (right - matrix @ start), level + 1)
        corrected: Array = start + prolongation @ coarse
        swept: Array = (
            corrected + RELAXATION * (right - matrix @ corrected) / matrix.diagonal()[:, None]
        )
        return swept


def relaxed(matrix: csr_array, error: Array) -> Array:
    """One sweep of damped Jacobi on A e = 0."""
    swept: Array = error - RELAXATION * (matrix @ error) / matrix.diagonal()[:, None]
    return swept


def strength_of(columns: Array) -> csr_array:
    """The strength matrix of the chosen columns [N, k]: ones there and on the diagonal."""
    rows, k = columns.shape
    indices = np.sort(np.concatenate([columns, np.arange(rows)[:, None]], 1), 1).reshape(-1)
    indptr = np.arange(0, rows * (k + 1) + 1, k + 1)
    return csr_array(
        (np.ones(len(indices)), indices.astype(np.int32), indptr.astype(np.int32)),
        shape=(rows, rows),
    )


def hierarchy_of(matrix: csr_array, strength: csr_array, levels: int = 2) -> Hierarchy:
    """The first coarse grid from the given strength, further ones as PyAMG makes them."""
    splitting = split.RS(strength)
    prolongation = csr_array(direct_interpolation(matrix, strength, splitting))
    matrices, prolongations = (
        [matrix, csr_array(prolongation.T @ matrix @ prolongation)],
        [prolongation],
    )
    if levels > 2:
        below = ruge_stuben_solver(matrices[1], max_levels=levels - 1).levels
        matrices += [csr_array(level.A) for level in below[1:]]
        prolongations += [csr_array(level.P) for level in below[:-1]]
    return Hierarchy(
        matrices=matrices,
        prolongations=prolongations,
        solve=splu(matrices[-1].tocsc()).solve,
        coarse_points=splitting == 1,
    )


class Solver:
    """A problem with the smooth errors that choices are judged on; the same choice always earns the
    same."""

    def __init__(
        self, problem: DiffusionProblem, config: SolverConfig, credit: CreditConfig | None = None
    ) -> None:
        self.problem, self._config, self._credit = problem, config, credit or CreditConfig()
        self._matrix = problem.matrix
        self._errors = self._made(config.vectors, config.smoothing)

    def _made(self, vectors: int, smoothing: int) -> Array:
        """Errors of norm 1, the same each time: [N, V]."""
        errors = np.random.default_rng(0).standard_normal((self._matrix.shape[0], vectors))
        for _ in range(smoothing):
            errors = relaxed(self._matrix, errors)
        normalised: Array = errors / energy(self._matrix, errors)
        return normalised

    def reward(self, columns: Array) -> float:
        """Of the chosen columns, [N, k]."""
        return self._reward(self._hierarchy(columns))

    def earned(self, columns: Array) -> tuple[float, Array | None]:
        """The reward, and where rows have credit of their own that, [N]."""
        hierarchy = self._hierarchy(columns)
        by_row = self._credit.type == "row"
        return self._reward(hierarchy), self._credited(hierarchy) if by_row else None

    @cached_property
    def _credit_errors(self) -> Array:
        return self._made(self._credit.vectors, self._credit.smoothing)

    def _hierarchy(self, columns: Array) -> Hierarchy:
        return hierarchy_of(self._matrix, strength_of(columns), self._config.levels)

    def _credited(self, hierarchy: Hierarchy) -> Array:
        """The reward's own formula with the error and the entries around each row, [N]."""
        errors = self._credit_errors
        for _ in range(self._credit.cycles):
            errors = hierarchy.cycle(errors)
        digits = (
            np.log10(self._energy_around(self._credit_errors) / self._energy_around(errors)) / 2
        )
        entries = np.zeros(len(errors))
        entries[hierarchy.coarse_points] = np.diff(hierarchy.matrices[1].indptr)
        complexity = 1 + self._around(entries) / self._around(np.diff(self._matrix.indptr))
        credit: Array = WORK * digits / (self._credit.cycles * complexity)
        return credit

    def _energy_around(self, errors: Array) -> Array:
        """Of the mean error, [N, V] -> [N]: the sum of e_j (A e)_j over all rows is ‖e‖_A²."""
        density = (errors * (self._matrix @ errors)).mean(1)
        # it may be below zero at single points
        least = LEAST_ENERGY * float(np.abs(density).mean())
        energies: Array = np.maximum(self._around(density), least)
        return energies

    def _around(self, numbers: Array) -> Array:
        """The mean over the square around each row, [N]."""
        side = self.problem.grid_size
        square = numbers.reshape(side, side).astype(float)
        means: Array = uniform_filter(square, self._credit.window, mode="nearest").reshape(-1)
        return means

    def _reward(self, hierarchy: Hierarchy) -> float:
        errors = self._errors
        for _ in range(self._config.cycles):
            errors = hierarchy.cycle(errors)
        digits = -np.log10(energy(self._matrix, errors)).mean()
        return float(WORK * digits / (self._config.cycles * hierarchy.complexity))


def energy(matrix: csr_array, errors: Array) -> Array:
    """‖e‖_A = (eᵀ A e)^½ of each column, [N, V] -> [V]."""
    norms: Array = np.sqrt((errors * (matrix @ errors)).sum(0))
    return norms
