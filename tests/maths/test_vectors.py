"""Vectors in full and as sketches: one interface, the same products within the stated error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradiometer.maths import vectors
from gradiometer.maths.vectors import ExactVectors, SketchedVectors, products_of, vectors_for

SHAPES = [(30, 40), (40,), (5, 7, 3), ()]


def parameters() -> list[torch.Tensor]:
    return [torch.zeros(shape) for shape in SHAPES]


def drawn(seed: int, missing: int | None = None) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    vector: list[torch.Tensor | None] = [
        torch.randn(shape, generator=generator) for shape in SHAPES
    ]
    if missing is not None:
        vector[missing] = None
    return vector


def flat(vector: list[torch.Tensor | None]) -> np.ndarray:
    return np.concatenate(
        [
            np.zeros(int(np.prod(shape))) if g is None else g.reshape(-1).double().numpy()
            for g, shape in zip(vector, SHAPES, strict=True)
        ]
    )


def test_exact_products_equal_the_vectors_own_in_total_and_per_atom() -> None:
    a, b = drawn(1), drawn(2, missing=1)
    held = ExactVectors(parameters(), atoms=[[0, 2], [1, 3]])
    held.add("a", a)
    held.add("b", b)
    found = products_of(held, ["a", "b"])
    both = np.stack([flat(a), flat(b)])
    assert np.allclose(found.sum(0), both @ both.T, rtol=1e-12)
    cut = np.r_[1200:1240, 1345]
    assert np.allclose(found[1], both[:, cut] @ both[:, cut].T, rtol=1e-12)
    assert np.allclose(held.products(["a"], ["b"]).numpy(), found[:, :1, 1:])
    assert np.allclose(products_of(held, ["a", "b"], wide=False), found, rtol=1e-5)
    assert held.cosine_error is None


@pytest.mark.parametrize("missing", [None, 0, 1, 3])
@pytest.mark.parametrize("chunk", [1 << 15, 100, 7])
@pytest.mark.parametrize("at_once", [0, 1 << 18])
def test_many_parameters_in_one_call_are_the_same_as_one_by_one(
    missing: int | None, chunk: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "AT_ONCE", at_once)
    a, b = drawn(1), drawn(2, missing)
    held = ExactVectors(parameters())
    held._chunk = chunk
    held.add("a", a)
    held.add("b", b, scale=-2.0)
    both = np.stack([flat(a), -2.0 * flat(b)])
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    found = products_of(held, ["a", "b"])
    for own, part in zip(found, np.split(both, ends[:-1], axis=1), strict=True):
        assert np.allclose(own, part @ part.T, rtol=1e-12)
    third = drawn(3, missing)
    there = np.concatenate(
        [np.full(int(np.prod(s)), g is not None) for g, s in zip(third, SHAPES, strict=True)]
    )
    pair = np.stack([both.sum(0), flat(third)])[:, there]
    assert np.allclose(held.against(["a", "b"], third).numpy(), pair @ pair.T, rtol=1e-5)


@pytest.mark.parametrize("kind", [ExactVectors, SketchedVectors])
def test_adding_to_a_name_adds_the_vectors(kind: type) -> None:
    held = kind(parameters())
    for seed in (1, 2, 3):
        held.add("sum", drawn(seed))
    held.add(
        "whole",
        [
            torch.stack(parts).sum(0)
            for parts in zip(*(drawn(seed) for seed in (1, 2, 3)), strict=True)
        ],
    )
    found = products_of(held, ["sum", "whole"]).sum(0)
    assert found[0, 1] == pytest.approx(found[0, 0], rel=1e-5)
    assert held.names() == ["sum", "whole"]


def test_sketched_products_are_right_within_the_stated_error() -> None:
    truth, found = [], []
    for seed in range(60):
        a, b = drawn(2 * seed), drawn(2 * seed + 1)
        held = SketchedVectors(parameters(), atoms=[[0, 1, 2, 3]], k=256, seed=seed)
        held.add("a", a)
        held.add("b", b)
        products = products_of(held, ["a", "b"])[0]
        lengths = np.linalg.norm(flat(a)) * np.linalg.norm(flat(b))
        truth.append(flat(a) @ flat(b) / lengths)
        found.append(products[0, 1] / lengths)
    error = np.array(found) - np.array(truth)
    assert held.cosine_error == 1 / 16
    assert abs(error.mean()) < 3 / 16 / np.sqrt(60)
    assert 0.7 / 16 < error.std() < 1.3 / 16


def test_the_memory_limit_chooses() -> None:
    size = 4 * sum(p.numel() for p in parameters())
    assert isinstance(vectors_for(parameters(), expected=10, memory_limit=10 * size), ExactVectors)
    assert isinstance(
        vectors_for(parameters(), expected=10, memory_limit=10 * size - 1), SketchedVectors
    )


def test_a_half_precision_gradient_is_summed_in_full_precision() -> None:
    held = ExactVectors([torch.zeros(1, dtype=torch.bfloat16)])
    for _ in range(1000):
        held.add("a", [torch.ones(1, dtype=torch.bfloat16)])
    assert products_of(held, ["a"])[0, 0, 0] == 1e6  # bfloat16 itself stops at 256


def test_a_sparse_gradient_counts_where_its_rows_are() -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[1]]), torch.ones(1, 3), (4, 3), check_invariants=True
    )
    for kind in (ExactVectors, SketchedVectors):
        held = kind([torch.zeros(4, 3)])
        held.add("a", [sparse])
        held.add("b", [sparse.to_dense()])
        assert np.allclose(products_of(held, ["a", "b"])[0], 3.0)


def test_one_more_gradient_is_held_against_the_sum_where_it_has_elements() -> None:
    a, b, raw = drawn(1), drawn(2, missing=1), drawn(3, missing=2)
    held = ExactVectors(parameters())
    held.add("a", a)
    held.add("b", b)
    pair = np.stack([flat(a) + flat(b), flat(raw)])
    pair[:, 1240:1345] = 0.0  # the gradient has no third parameter
    assert np.allclose(held.against(["a", "b"], raw).numpy(), pair @ pair.T, rtol=1e-6)


@pytest.mark.parametrize("kind", [ExactVectors, SketchedVectors])
def test_complex_and_sparse_gradients_are_real_and_dense_in_the_products(kind: type) -> None:
    wave = torch.tensor([3.0 + 4.0j, 1.0j])
    rows = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]),
        torch.tensor([[1.0, 0.0], [1.0, 2.0]]),
        (4, 2),
        check_invariants=True,
    )
    held = kind([torch.zeros(2, dtype=torch.complex64), torch.zeros(4, 2)])
    held.add("a", [wave, rows])
    squares = products_of(held, ["a"])[:, 0, 0]
    assert squares == pytest.approx([26.0, 8.0], rel=1e-6 if kind is ExactVectors else 0.5)
