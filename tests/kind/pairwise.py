"""A sample of a product of choices in which every pair of values of two dimensions occurs (greedy; the same each time)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence


def sample(dimensions: Mapping[str, Sequence[str]], possible: Callable[[dict[str, str]], bool] = lambda row: True) -> list[dict[str, str]]:
    """Rows {dimension: value}. Pairs that no possible row has are left out."""
    names = list(dimensions)
    rows = [row for values in itertools.product(*dimensions.values()) if possible(row := dict(zip(names, values, strict=True)))]
    open_pairs = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while open_pairs:
        best = max(rows, key=lambda row: len(open_pairs & _pairs(row)))
        chosen.append(best)
        open_pairs -= _pairs(best)
    return chosen


def _pairs(row: Mapping[str, str]) -> frozenset:
    return frozenset(itertools.combinations(row.items(), 2))
