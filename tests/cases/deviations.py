"""The only table of cases that we decide otherwise, or that do not apply here, with the reasons."""

from __future__ import annotations

EXACTLY = "exactly the timeout is not yet idle (Flink's rule)"
AT_THE_WATERMARK = "a row at the watermark is late in Spark, so the bound takes off 1 ms more"

DEVIATIONS: dict[str, str] = {
    # alignment
    "ALN-06": "Flink refuses speculative execution with alignment, as two attempts would report two watermarks; in "
    "Spark the offset fixes the rows of a batch, and marks of one task merge by max, so an attempt changes nothing",
    "SPL-01": "no split runs ahead to be paused afterwards: a slice stops at the cap before any of it is read, and "
    "a cap that rises counts in the next batch (tests/sources/slicing/test_slicing.py), so there is nothing to sample",
    "SPL-05": "see SPL-01",
    "SPL-06": "no metrics are registered per split: they are read from the status when scraped, and a split that was "
    "removed is in no status",
    "SPL-09": "see SPL-01",
    "OPA-01": "see SPL-01",
    "OPA-04": "a reader that waits for alignment blocks on nothing that could have to be completed: it is not asked "
    "to read, and a stop ends it as it ends any other",
    "SMP-01": "see SPL-01",
    "SMP-02": "see SPL-01",
    "SMP-03": "see SPL-01",
    "CLK-02": "pauses do not nest: alignment alone pauses a split, and it is paused or not",
    # Pathway
    "P7": "streams have no priorities: a member of a group is held back by the group's drift alone",
    # quorum
    "S2": "a task that is silent for exactly the timeout is not yet idle (Flink's rule), so step 3 still says 1; one "
    "ms later it is, and the minimum of the others is said at once: it depends on states and values, not on whether "
    "the plain minimum has just moved",
    "S4": "exactly the timeout is not yet idle (Flink's rule); one ms later the silent task is left out as in Samza",
    # the watermark of one split: Jet (HP), Beam (BK, BS)
    "HP1": AT_THE_WATERMARK,
    "HP2": AT_THE_WATERMARK,
    "HP4": "no watermark follows the clock while splits are silent: it would pass rows that wait unread. Idleness "
    'leaves silent splits out, and with_all_idle("advance") lets a stream go on when all of them are',
    "HP6": AT_THE_WATERMARK,
    "HP7": "no watermark follows the clock beside live splits: rows of a slow split would be late; see HP4",
    "HP8": "before the first row there is no watermark, whatever the clock says; see HP4",
    "HP9": AT_THE_WATERMARK,
    "BK2": AT_THE_WATERMARK,
    "BK3": "an event from beyond the future guard is counted and does not move the watermark at all, where Beam takes "
    "it for now: one bad clock must not make the others' rows late",
    "BK4": "a caught-up split is left out (idle), not moved on by the broker's clock; only when all are idle the low "
    'watermark may follow processing time, if with_all_idle("advance") asks for it',
    "BS1": AT_THE_WATERMARK,
    "BS2": AT_THE_WATERMARK,
    "BS3": "a quiet split is left out, not moved to the clock; see BK4",
    "BS4": AT_THE_WATERMARK,
    "BS5": AT_THE_WATERMARK,
    # Beam's inputs and holds
    "BM3": "the end of all splits is no watermark: the low watermark stays, and Spark ends the query, which is what "
    "the largest number stands for in Beam",
    "BP1": "an estimate from the messages of a minute is for a source without positions; every split here has a "
    "watermark of all it delivered",
    "BP2": "see BP1: nothing is estimated, so nothing needs a minimum of samples",
    "BP3": "see BK4",
    "BP4": "a split's watermark never goes back: it is a promise about its rows, and no estimate that may be corrected",
    "BG2": "a stream has one low watermark: there is no pair that could contradict itself",
    "BG3": "a repeated report is a no-op: Spark replays batches",
    "M2": "a stream's coordinator lives and dies with its run; stale tokens are rejected by the coordinator of many "
    "(LowWatermarkCoordinator, tests/watermark/tasks/test_coordinator.py)",
    # Flink's sources
    "EVT-07": "there is no backlog flag that could overtake a watermark: the watermark of a batch is in the next one",
    "CRD-07": "readers are rows of a plan on the driver: none fails by itself or goes back to another checkpoint than "
    "the rest, so nothing is ever given back, and who has which split is in Spark's offset",
    "CRD-15": "one coordinator is in one planner's process: there is nobody else to find it",
    "CRD-17": "see CRD-07",
    "CRD-19": "see CRD-07",
    "CTX-03": "see CRD-07",
    "TRK-01": "see CRD-07",
    "TRK-02": "see CRD-07",
    "TRK-04": "see CRD-07",
    "TRK-05": "see CRD-07",
    "KIN-03": "rows are not emitted one by one: a batch has no order, and alignment decides what is read next",
    "BUG-09": "see SPL-01",
    "BUG-06": "the end of a stream is no watermark and idle is no signal to anyone downstream: a split that finishes "
    "while it is idle changes its state, and nothing waits for it to be active first",
    "RTL-03": "readers ask for nothing: a batch is planned with what the rate allows, and one that takes more, because "
    "a step of its source is read as a whole, is waited for (tests/sources/planning/test_rate_limit.py)",
    "RTL-09": "a batch is planned for all readers at once, so a rate is not shared out among them",
    "SRC-01": "a reader has the splits that its batch planned, and reports none when it registers",
    "SRC-02": "a batch ends with its rows: there is no drain to tell from a stop, and nothing to finish after the end",
    "SRC-03": "where a split stands is in the offset, which is written before anything is read; no reader is asked",
    "SRC-04": "readers live for one batch, and those that decide when a checkpoint is hear of it on the driver "
    "(tests/sources/planning/test_batches.py)",
    "SRC-05": "nothing can be put out before the first checkpoint: Spark writes the offset first, then reads",
    "SRC-06": "see SRC-05: no reader waits for a checkpoint, so a stop cannot meet one that does",
    "SRC-07": "no metric is kept per split: its watermark is read from the status when scraped, None while it has none "
    "(tests/integration/metrics/test_metrics.py)",
    "SRC-08": "see SPL-01",
    "SRC-09": "see SPL-01",
    # Jet's coalescer (H) and the splits of one of its sources (HM)
    "H18": "a repeated signal is a no-op: Spark replays",
    "H20": "a timer races with the end of a split, so idle after finished is a no-op",
    "HM1": f"{EXACTLY}: split 1 still holds at t=5; {AT_THE_WATERMARK}",
    "HM3": f"no splits is not idle: only the user's timeout is (FLIP-180); {AT_THE_WATERMARK}",
    "HM5": EXACTLY,
    "HM7": AT_THE_WATERMARK,
    "HM9": f"{AT_THE_WATERMARK}: event 11 only confirms the restored 10",
    "HM11": AT_THE_WATERMARK,
    "HM13": "a generator's watermark is published as it is (Flink's rule)",
}
