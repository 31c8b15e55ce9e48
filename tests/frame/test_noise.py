"""Keyed noise: the right distribution, independent streams, and nothing but the key counts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from bench.noise import _GOLDEN, Noise, _mix, bound


def test_hash_is_splitmix64() -> None:
    """The first outputs for seed 0, as every implementation of SplitMix64 gives them."""
    steps = torch.arange(1, 4, dtype=torch.int64) * _GOLDEN
    words = [value % 2**64 for value in _mix(steps).tolist()]
    assert words == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_normal_draws_are_standard_normal() -> None:
    values = bound(0, "normality", range(2000)).normal(3, 8, 8).double().numpy().ravel()
    n = len(values)
    assert stats.kstest(values, "norm").pvalue > 0.01
    assert abs(values.mean()) < 4 / n**0.5
    assert abs(values.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs(stats.skew(values)) < 4 * (6 / n) ** 0.5
    assert abs(stats.kurtosis(values)) < 4 * (24 / n) ** 0.5
    # Among so many the largest lies between the 1e-3 and 1 - 1e-3 quantiles of the maximum.
    assert stats.norm.isf(7.0 / n) < np.abs(values).max() < stats.norm.isf(0.0005 / n)


def test_draws_of_one_image_are_normal_too() -> None:
    """A fault of a single stream would drown among two thousand."""
    for image in (0, 1, 49_999):
        values = bound(3, "one", [image]).normal(20_001).double().numpy().ravel()
        assert stats.kstest(values, "norm").pvalue > 1e-3


def test_uniform_and_integers() -> None:
    noise = bound(1, "uniform", range(500))
    values = noise.uniform(400).double().numpy().ravel()
    assert values.min() >= 0
    assert values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 0.01
    counts = np.bincount(noise.at("i").integers(7, 400).numpy().ravel(), minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 0.01


def streams(kind: str, count: int) -> list[Noise]:
    base = bound(0, "independence", [5])
    if kind == "images":
        return [bound(0, "independence", [i]) for i in range(count)]
    if kind == "seeds":
        return [bound(seed, "independence", [5]) for seed in range(count)]
    if kind == "tasks":
        return [bound(0, f"task{i}", [5]) for i in range(count)]
    if kind == "draws":
        return [base.at("draw", i) for i in range(count)]
    lanes = base.expand(count)
    return [lanes.select(torch.tensor([i])) for i in range(count)]


@pytest.mark.parametrize("kind", ["images", "seeds", "tasks", "draws", "lanes"])
def test_streams_are_independent(kind: str) -> None:
    """No pair of streams is correlated, in values, in squares, or one number later."""
    count, n = 24, 20_000
    values = torch.cat([s.normal(n) for s in streams(kind, count)]).double().numpy()
    pairs = count * count
    bound_ = stats.norm.isf(0.001 / pairs) / n**0.5
    for a, b in [(values, values), (values**2, values**2), (values[:, 1:], values[:, :-1])]:
        correlations = np.corrcoef(a, b)[:count, count:]
        if a.shape[1] == n:
            correlations = correlations - np.diag(np.diag(correlations))
        assert np.abs(correlations).max() < bound_ * 1.2


def test_both_halves_of_a_pair_are_independent() -> None:
    """Box-Muller makes two numbers of one word; they must not know each other."""
    values = bound(0, "pairs", range(200)).normal(2000).double().numpy()
    cosines, sines = values[:, :1000].ravel(), values[:, 1000:].ravel()
    n = len(cosines)
    assert abs(np.corrcoef(cosines, sines)[0, 1]) < 4 / n**0.5
    assert abs(np.corrcoef(cosines**2, sines**2)[0, 1]) < 4 / n**0.5


def test_numbers_do_not_depend_on_batch_or_order() -> None:
    ids = torch.tensor([4, 1, 99, 7, 0, 12345])
    whole = bound(2, "split", ids).normal(1, 3, 3)
    for size in (1, 2, 4):
        parts = [bound(2, "split", part).normal(1, 3, 3) for part in torch.split(ids, size)]
        assert torch.equal(torch.cat(parts), whole)
    order = torch.tensor([5, 3, 1, 0, 2, 4])
    assert torch.equal(bound(2, "split", ids[order]).normal(1, 3, 3), whole[order])


def test_select_follows_the_rows() -> None:
    noise = bound(0, "select", range(10))
    mask = torch.tensor([i % 3 == 0 for i in range(10)])
    assert torch.equal(noise.select(mask).uniform(5), noise.uniform(5)[mask])
    rows = torch.tensor([9, 2, 2])
    assert torch.equal(noise.at("x", 1).select(rows).normal(4), noise.at("x", 1).normal(4)[rows])
    assert torch.equal(noise.select(rows).at("x", 1).normal(4), noise.at("x", 1).normal(4)[rows])


def test_five_samples_are_the_first_of_twenty() -> None:
    noise = bound(0, "expand", range(3))
    few = noise.expand(5).normal(7).view(3, 5, 7)
    many = noise.expand(20).normal(7).view(3, 20, 7)
    assert torch.equal(few, many[:, :5])


def test_rows_of_nested_expansions_differ() -> None:
    rows = bound(0, "nested", range(2)).expand(4).expand(5).normal(3)
    assert len({tuple(row) for row in rows.tolist()}) == 2 * 4 * 5


def test_branches_differ_by_name_and_type() -> None:
    base = bound(0, "branches", [0])
    names: list[tuple[int | str, ...]] = [(1,), ("1",), ("a", 1), ("a1",), (1, "a"), ("a", 1, 0)]
    draws = [base.at(*name).normal(4) for name in names]
    for one, other in itertools.combinations(draws, 2):
        assert not torch.equal(one, other)
    assert torch.equal(base.at("a", 1).normal(4), base.at("a", 1).normal(4))


def test_extreme_seeds_and_ids_work() -> None:
    ids = torch.tensor([0, 2**62, -1])
    draws = [bound(seed, "extreme", ids).normal(50) for seed in (0, 2**63, 2**64 - 1)]
    assert all(bool(d.isfinite().all()) for d in draws)
    assert len({tuple(row) for d in draws for row in d.tolist()}) == 9


def test_global_random_state_is_untouched() -> None:
    torch.manual_seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    noise = bound(0, "rng", range(4)).expand(2).at("x")
    noise.normal(3), noise.uniform(3), noise.integers(5, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # type: ignore[index]


def test_odd_counts_and_empty_batches() -> None:
    noise = bound(0, "odd", range(2))
    assert noise.normal(3, 5).shape == (2, 3, 5)
    assert bound(0, "none", []).normal(2, 2).shape == (0, 2, 2)
