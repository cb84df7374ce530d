"""Fair shares of a budget, for splits whose rows cannot be chosen by time.

Water filling: every split gets the same share, small backlogs are taken whole, and the rest of their shares goes to the
other splits. If rows are left over, the split that was read least far comes first, and now and then the first split
of a shuffle, because a split whose rows have no times, or only old times, would otherwise be first for ever.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from .table import Booleans, Integers, SliceTable


def share_out(
    table: SliceTable, among: Booleans, budget: float, limit: Integers, *, at_least_one: bool = True
) -> Integers:
    """Return the stop of each split, at most its limit, when a budget is shared.

    Args:
        among: the splits that take part; the others stop at their start.
        budget: the largest cost of all rows together. One step of one split is taken even if it costs more.
        at_least_one: whether a split gets a row even if the budget is too small for a row.
    """
    stops = table.start.copy()
    need = np.where(among, table.rows_to(limit), 0)
    free = among & (need * table.cost == 0)  # positions without a row, or rows without a byte
    stops[free] = limit[free]
    wanting = np.flatnonzero(among & ~free).tolist()
    if not wanting:
        return stops
    order = _least_far_first(table, wanting)
    given = _fill(table, order, need, budget, at_least_one=at_least_one)
    spent = 0.0
    for i in order:
        rows = given[i]
        if rows == 0:
            continue
        stop = int(limit[i]) if rows >= need[i] else table.after_rows(i, rows, int(limit[i]))
        taken = table.count(i, stop)
        cost = taken * float(table.cost[i])
        if spent > 0 and spent + cost > budget:
            continue  # the step has more than the share: the split waits until it is first
        stops[i] = stop
        spent += cost
        if spent >= budget:
            break
    return stops


def _least_far_first(table: SliceTable, wanting: list[int]) -> list[int]:
    seed = table.seed
    names = [split.split_id for split in table.splits]
    shuffled = sorted(wanting, key=lambda i: (crc32(names[i].encode(), seed), names[i]))
    if seed % 4 == 0:
        return shuffled
    return sorted(shuffled, key=lambda i: float(table.observed_us[i]))


def _fill(table: SliceTable, order: list[int], need: Integers, budget: float, *, at_least_one: bool) -> dict[int, int]:
    rows, cost = need[order], table.cost[order]
    ascending = np.sort(rows * cost)
    # The same sums decide whether everything fits and make the levels, because sums in another order are rounded in
    # another way: then not everything would fit, and yet no backlog would be too large for its level.
    sums = np.cumsum(ascending)
    if sums[-1] <= budget:
        return dict(zip(order, rows.tolist(), strict=True))
    # If the backlogs up to the k-th smallest are taken whole, every other split gets `level`.
    level = (budget - np.concatenate(([0.0], sums[:-1]))) / np.arange(len(order), 0, -1)
    given = np.minimum(rows, np.floor(level[np.flatnonzero(level <= ascending)[0]] / cost).astype(np.int64))
    left = budget - float((given * cost).sum())
    for place in np.flatnonzero(given < rows).tolist():
        if cost[place] <= left:
            given[place] += 1
            left -= float(cost[place])
    if at_least_one and not given.any():
        given[0] = 1
    return dict(zip(order, given.tolist(), strict=True))
