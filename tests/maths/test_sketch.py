"""Linear sketches against exact inner products, above all on vectors with structure."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradiometer.maths import sketch as sk
from gradiometer.maths.sketch import (
    Sketcher,
    cosine,
    cosine_error,
    key_of,
    norm_error,
    shift_of,
)

SHAPES = [
    (),
    (0,),
    (1,),
    (384,),
    (1536, 384),
    (2, 3, 5),
    (sk.TILE,),
    (sk.TILE + 1,),
    (2 * sk.TILE - 1,),
]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tensors(seed: int) -> list[Tensor]:
    return [noise(*shape, seed=seed + i) for i, shape in enumerate(SHAPES)]


KEYS = [key_of(str(shape)) for shape in SHAPES]


def brute_force(sketcher: Sketcher, x: Tensor, key: int) -> np.ndarray[Any, Any]:
    """The definition, element by element: sign and bucket of each."""
    signs = sk.signs_of(sk.random_words(sk.TILE, sketcher.seed, sk.SIGN_STREAM))
    padded = -(-sk.WIDTH // sketcher.k) * sketcher.k
    order = np.argsort(sk.random_words(padded, sketcher.seed, sk.ORDER_STREAM), kind="stable")
    bucket = np.empty(padded, np.int64)
    bucket[order] = np.arange(padded) % sketcher.k
    words = sk.random_words(-(-x.numel() // sk.TILE), sketcher.seed, sk.TILE_STREAM, key)
    n = np.arange(x.numel())
    word, p = words[n // sk.TILE], n % sk.TILE
    place = (p + (word % np.uint64(sk.SHIFTS)).astype(np.int64)) % sk.WIDTH
    contributions = x.double().flatten().numpy() * signs[p] * sk.signs_of(word)
    return np.bincount(bucket[place], contributions, minlength=sketcher.k)


class Syncs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that would make the host wait for an accelerator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(
            name in str(func) for name in ("_local_scalar_dense", "nonzero.default", "is_nonzero")
        ):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_sketch_is_linear() -> None:
    sketcher, a, b = Sketcher(seed=1), tensors(1), tensors(50)
    both = sketcher.sketch([x + 3 * y for x, y in zip(a, b, strict=True)], KEYS)
    expected = sketcher.sketch(a, KEYS) + 3 * sketcher.sketch(b, KEYS)
    torch.testing.assert_close(both, expected, rtol=0, atol=2e-5 * float(expected.norm()))


@given(
    numel=st.one_of(st.integers(0, 3000), st.integers(sk.TILE - 2, 2 * sk.TILE + 2)),
    seed=st.integers(0, 2**70),
)
@settings(max_examples=30, deadline=None)
def test_any_number_of_elements_gives_what_the_definition_says(numel: int, seed: int) -> None:
    sketcher, x = Sketcher(seed=seed, k=64), noise(numel)
    found = sketcher.sketch([x], [7]).double()
    expected = torch.from_numpy(brute_force(sketcher, x, 7)).double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * (1 + math.sqrt(numel)))


def test_every_element_lands_in_one_bucket_with_a_sign() -> None:
    sketches = Sketcher(seed=3).sketch_groups(
        list(torch.eye(500)), range(500), [[i] for i in range(500)]
    )
    assert torch.equal(sketches.abs().sum(1), torch.ones(500))
    assert torch.equal((sketches != 0).sum(1), torch.ones(500, dtype=torch.int64))


def test_groups_add_up_to_the_whole() -> None:
    sketcher, x = Sketcher(seed=2), tensors(3)
    whole, each = (
        sketcher.sketch(x, KEYS),
        sketcher.sketch_groups(x, KEYS, [[i] for i in range(len(x))]),
    )
    groups = sketcher.sketch_groups(x, KEYS, [[4, 0], [], [1, 2, 3], [8, 7, 6, 5]])
    assert groups.shape == (4, 1024)
    assert torch.equal(groups[1], torch.zeros(1024))
    torch.testing.assert_close(groups.sum(0), whole, rtol=0, atol=1e-3)
    torch.testing.assert_close(each.sum(0), whole, rtol=0, atol=1e-3)
    torch.testing.assert_close(each[4] + each[0], groups[0], rtol=0, atol=1e-3)


def test_a_call_leaves_nothing_behind_for_the_next() -> None:
    sketcher, x = Sketcher(seed=2), tensors(3)
    first = sketcher.sketch(x, KEYS)
    assert torch.equal(first, sketcher.sketch(x, KEYS))
    assert torch.equal(first, Sketcher(seed=2).sketch(x, KEYS))
    assert torch.equal(sketcher.sketch([], []), torch.zeros(1024))


def column(rows: int, columns: int, width: int = 1) -> Tensor:
    """A matrix with noise in one block of columns and zeros elsewhere."""
    x = torch.zeros(rows, columns)
    x[:, 7 : 7 + width] = noise(rows, width)
    return x


def hot_rows() -> Tensor:
    """The gradient of an embedding: a few rows of many."""
    x = torch.zeros(2000, 384)
    x[[5, 77, 1200]] = noise(3, 384)
    return x


STRUCTURES: dict[str, Callable[[], list[Tensor]]] = {
    "noise": lambda: [noise(300_000)],
    "short": lambda: [noise(3000)],
    "constant": lambda: [torch.ones(600_000)],
    "rank one": lambda: [torch.outer(noise(1024, seed=1), noise(1024, seed=2))],
    "rank one, positive": lambda: [
        torch.outer(noise(768, seed=1).abs(), noise(1024, seed=2).abs())
    ],
    "rank one, narrow": lambda: [torch.outer(noise(4096, seed=1), noise(64, seed=2))],
    "every 1024th": lambda: [column(1024, 1024)],
    "every 1024th, constant": lambda: [column(1024, 1024).sign()],
    "every 4096th, constant": lambda: [column(256, 4096).abs().ceil()],
    "block of columns": lambda: [column(1024, 1024, width=32)],
    "contiguous block": lambda: [
        torch.cat([torch.zeros(300_000), torch.ones(50_000), torch.zeros(100_000)])
    ],
    "embedding rows": lambda: [hot_rows()],
    "one element per tile": lambda: [
        torch.zeros(4 * sk.TILE).index_fill_(0, torch.arange(4) * sk.TILE + 5, 1.0)
    ],
    "the same tile again": lambda: [noise(sk.TILE).repeat(3)],
    "equal biases": lambda: [torch.ones(384) for _ in range(40)],
}
SEEDS = 200


@pytest.fixture(scope="module")
def over_seeds() -> dict[str, np.ndarray[Any, Any]]:
    """Sketches [SEEDS, k] of each structure, each divided by the exact norm."""
    found: dict[str, list[Tensor]] = {name: [] for name in STRUCTURES}
    inputs = {name: make() for name, make in STRUCTURES.items()}
    for seed in range(SEEDS):
        sketcher = Sketcher(seed=seed, k=256)
        for name, x in inputs.items():
            found[name].append(sketcher.sketch(x, list(range(len(x)))))
    norms = {
        name: math.sqrt(sum(float(y.double().square().sum()) for y in x))
        for name, x in inputs.items()
    }
    return {name: torch.stack(rows).double().numpy() / norms[name] for name, rows in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRUCTURES)
def test_the_squared_norm_is_unbiased_with_the_error_we_print(
    name: str, over_seeds: dict[str, np.ndarray[Any, Any]]
) -> None:
    squares = np.square(over_seeds[name]).sum(1)
    error = norm_error(256)
    assert squares.mean() == pytest.approx(1.0, abs=4 * error / math.sqrt(SEEDS))
    # the standard deviation of 200 draws is itself known to 5 %; few elements collide less and do
    # better
    assert squares.std() < 1.2 * error
    assert squares.std() > 0.8 * error or "element" in name


PAIRS: dict[str, Callable[[], tuple[list[Tensor], list[Tensor]]]] = {
    "independent noise": lambda: ([noise(300_000, seed=1)], [noise(300_000, seed=2)]),
    "one factor shared": lambda: (
        [torch.outer(noise(512, seed=1), noise(1024, seed=3))],
        [torch.outer(noise(512, seed=2), noise(1024, seed=3))],
    ),
    "one positive factor shared": lambda: (
        [torch.outer(noise(512, seed=1), noise(1024, seed=3).abs())],
        [torch.outer(noise(512, seed=2), noise(1024, seed=3).abs())],
    ),
    "neighbouring columns": lambda: (
        [column(1024, 512).sign()],
        [column(1024, 512).sign().roll(1, 1)],
    ),
    "the same vector in two tensors": lambda: (
        [torch.ones(300_000), torch.zeros(300_000)],
        [torch.zeros(300_000), torch.ones(300_000)],
    ),
    "cosine 0.8": lambda: (
        [noise(9000, seed=1)],
        [0.8 * noise(9000, seed=1) + 0.6 * noise(9000, seed=2)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_inner_products_are_unbiased_with_the_error_we_print(name: str) -> None:
    a, b = PAIRS[name]()
    x, y = (torch.cat([t.flatten() for t in vector]).double() for vector in (a, b))
    scale = float(x.norm() * y.norm())
    true, keys = float(x @ y) / scale, list(range(len(a)))
    products, cosines = [], []
    for seed in range(SEEDS):
        sketcher = Sketcher(seed=seed, k=256)
        sketch_a, sketch_b = (
            sketcher.sketch(a, keys).double().numpy(),
            sketcher.sketch(b, keys).double().numpy(),
        )
        products.append(float(sketch_a @ sketch_b) / scale)
        cosines.append(cosine(sketch_a, sketch_b))
    assert np.mean(products) == pytest.approx(
        true, abs=4 * cosine_error(256) * math.sqrt(1 + true**2) / math.sqrt(SEEDS)
    )
    # sd of an estimated correlation: (1 − ρ²)/√k
    expected = cosine_error(256) * (1 - true**2)
    assert 0.8 * expected < np.std(np.array(cosines, dtype=float)) < 1.2 * expected


def test_tensors_with_other_keys_have_independent_sketches() -> None:
    x, sketcher = noise(5000), Sketcher(seed=0)
    a, b = (sketcher.sketch([x], [key]).numpy() for key in (1, 2))
    assert abs(cosine(a, b) or 1.0) < 5 * cosine_error(1024)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_summed_in_float32(dtype: torch.dtype) -> None:
    x = noise(400_000).to(dtype)
    found = Sketcher().sketch([x], [0])
    assert found.dtype == torch.float32
    assert torch.equal(found, Sketcher().sketch([x.float()], [0]))


def test_the_order_of_elements_is_that_of_the_shape_not_of_the_memory() -> None:
    x = noise(4, 3, 8, 8)
    last = x.to(memory_format=torch.channels_last)
    assert torch.equal(Sketcher().sketch([x], [0]), Sketcher().sketch([last], [0]))


def test_no_sync_and_no_graph() -> None:
    sketcher, x = Sketcher(seed=1), [y.requires_grad_() for y in tensors(1)]
    sketcher.sketch(x, KEYS)
    with Syncs() as syncs:
        sketch = sketcher.sketch_groups(x, KEYS, [[0, 1, 2], [3, 4, 5, 6, 7, 8]])
    assert syncs.seen == []
    assert not sketch.requires_grad


def test_global_generators_stay_untouched() -> None:
    before, numpy_before = torch.random.get_rng_state(), str(np.random.get_state())
    Sketcher(seed=99).sketch(tensors(1), KEYS)
    assert torch.equal(before, torch.random.get_rng_state())
    assert numpy_before == str(np.random.get_state())


@pytest.mark.slow
def test_another_process_draws_the_same_sketch() -> None:
    code = (
        "import torch; from gradiometer.maths.sketch import Sketcher, key_of;print(Sketcher(seed=5,"
        " k=8).sketch([torch.arange(600_000) % 17.0], [key_of('layer.weight')]).tolist())"
    )
    env = {"PYTHONHASHSEED": "123", "OMP_NUM_THREADS": "1", "PATH": ""}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    here = Sketcher(seed=5, k=8).sketch([torch.arange(600_000) % 17.0], [key_of("layer.weight")])
    assert out.stdout.strip() == str(here.tolist())


def test_hashes_never_change_between_versions() -> None:
    # splitmix64 of seed 0, from its authors; a stored sketch is worth nothing if these move
    assert sk.mixed(np.zeros(1, np.uint64)).tolist() == [0xE220A8397B1DCDAF]
    assert key_of("layer.weight") == 18127671354823465387
    assert Sketcher(seed=5, k=4).sketch([torch.arange(10.0)], [1]).tolist() == [
        -6.0,
        -1.0,
        14.0,
        0.0,
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_shows_and_does_not_stay(bad: float) -> None:
    sketcher, x = Sketcher(), torch.ones(50)
    x[3] = bad
    sketch = sketcher.sketch([x], [0])
    assert int((~sketch.isfinite()).sum()) == 1
    assert cosine(sketch.numpy(), sketch.numpy()) is None
    assert sketcher.sketch([torch.ones(50)], [0]).isfinite().all()


def test_a_failed_call_does_not_spoil_the_next() -> None:
    sketcher, x = Sketcher(), torch.ones(50)
    expected = sketcher.sketch([x], [0])
    with pytest.raises(IndexError):
        sketcher.sketch_groups([x], [0], [[0, 1]])
    assert torch.equal(sketcher.sketch([x], [0]), expected)


def test_cosine_of_known_vectors() -> None:
    assert cosine([3.0, 4.0], [4.0, 3.0]) == pytest.approx(0.96)
    assert cosine(np.array([1e-30, 0.0], np.float32), [2e30, 0.0]) == pytest.approx(1.0)
    assert cosine([0.0, 0.0], [1.0, 0.0]) is None


def test_errors_at_the_usual_size() -> None:
    assert norm_error(1024) == pytest.approx(0.0442, abs=1e-4)
    assert cosine_error(1024) == 0.03125


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="k must lie in 1"):
        Sketcher(k=0)
    with pytest.raises(ValueError, match="key of its own"):
        Sketcher().sketch([torch.ones(1), torch.ones(1)], [3, 3])


def test_sketchers_of_one_seed_and_size_are_equal() -> None:
    used = Sketcher(seed=1)
    used.sketch([torch.ones(3)], [0])
    assert used == Sketcher(seed=1)
    assert used != Sketcher(seed=2)
    assert repr(used) == "Sketcher(seed=1, k=1024)"


def test_the_mean_over_shifts_converges_and_that_of_one_hash_does_not() -> None:
    """The norm of one and the same vector, and its product with another, sketched again and again."""
    sketcher, rounds = Sketcher(seed=3, k=128), 300
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, *shape, generator=generator) for shape in [(300, 40), (57,), (900,)]]
    keys, exact = [key_of(str(i)) for i in range(3)], torch.cat([x.flatten(1) for x in tensors], 1)

    def products(shift: int) -> np.ndarray[Any, Any]:
        a, b = (
            sketcher.sketch_groups([x[i] for x in tensors], keys, [range(3)], shift=shift)[0]
            for i in range(2)
        )
        return np.array([float(a @ a), float(a @ b)])

    scale = float(exact[0] @ exact[0])
    truth = np.array([scale, float(exact[0] @ exact[1])])
    errors = np.array([products(shift_of(number)) - truth for number in range(rounds)]) / scale
    once = math.sqrt(2 / 128)
    assert np.std(errors[:, 0]) == pytest.approx(once, rel=0.2)
    assert np.abs(errors.mean(0)).max() < 4 * once / math.sqrt(rounds)
    np.testing.assert_array_equal(products(7), products(7))
