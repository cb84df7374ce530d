"""What a run of a source of ours makes of plans, and what of them counts as written; no Spark here."""

from __future__ import annotations

from lowmark.sources.planning.peer import Planned
from lowmark.watermark import WatermarkStrategy

from tests.integration.test_half_handled import SECOND, Fed


def claimed(fed: Fed, checkpoint: int, at_s: int) -> None:
    """The planner says that both splits are so far."""
    fed.now_us += SECOND
    names = ("a", "b")
    planned = Planned(checkpoint, dict.fromkeys(names, ()), dict.fromkeys(names, at_s * SECOND))
    fed.run.plan(planned, fed.now_us)
    fed.planner.keep(planned)


def low(at_s: int) -> int:
    return WatermarkStrategy.for_monotonous_timestamps().watermark_of_max(at_s * SECOND)


def test_what_a_plan_claims_is_sure_once_another_plan_follows_or_its_batch_is_reported() -> None:
    fed = Fed("read")
    fed.run.tell()
    reported = fed.run.low_watermark_us
    claimed(fed, 4, 100)
    assert fed.run.low_watermark_us == low(100)
    for _ in range(3):  # the heartbeat asks again and again, and Spark has written nothing
        fed.run.tell()
        fed.run.answer(fed.now_us)
        assert fed.run.sure_low_us == reported
    claimed(fed, 5, 200)
    fed.run.tell()
    assert fed.run.sure_low_us == low(100)
    for batch_id in (3, 4):
        fed.report(batch_id, a=150, b=150)
    assert fed.run.sure_low_us == low(200)


def test_a_plan_that_came_after_the_last_answer_may_not_be_written() -> None:
    fed = Fed("read")
    seen = [fed.run.goes_beyond_its_offset]
    claimed(fed, 4, 100)
    seen.append(fed.run.goes_beyond_its_offset)
    fed.run.tell()
    seen.append(fed.run.goes_beyond_its_offset)
    fed.run.answer(fed.now_us)
    seen.append(fed.run.goes_beyond_its_offset)

    assert seen == [False, True, True, False]
