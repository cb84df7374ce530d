"""The strategies that histories are drawn from: few splits, few moments, and the numbers at which code breaks."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from lowmark.watermark import SplitId

SPLITS = ("a", "b", "c", "d")

splits = st.sampled_from(SPLITS)


def draws(many: int) -> int:
    """The number of worlds or examples for a law: all in `make test`, a sixteenth in `make check`."""
    return -(-many // 16) if os.environ.get("LOWMARK_DRAWS") == "few" else many


# Zero is falsy, minus one is a common sentinel, and the others are near the ends of 64 bits.
BOUNDARIES = (-(2**63), -(2**62), -1_000, -1, 0, 1, 1_000, 2**62, 2**63 - 1)
watermarks_us = st.one_of(st.sampled_from(BOUNDARIES), st.integers(-20, 80))

reports: st.SearchStrategy[dict[SplitId, int]] = st.dictionaries(splits, watermarks_us, max_size=len(SPLITS))

# Failures print their seed and their smallest example; a slow machine fails no test.
LAWS = settings(
    deadline=None,
    print_blob=True,
    max_examples=draws(150),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
