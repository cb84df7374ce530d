"""Flink's cases about the reader of a source (SRC). Those about event time (EVT) are in test_split_cases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pytest
from lowmark.sources import InputStatus, SourceReader, SourceSplit, SplitFetcherReader
from lowmark.sources.reader import SplitPauseUnsupported
from lowmark.sources.testing_context import ManualReaderContext

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, family
from tests.live.servers import wait_until
from tests.sources.stepping import Polling, SteppingReader

ZERO, ONE = SourceSplit(split_id="0"), SourceSplit(split_id="1")
EVENS_AND_ODDS = {"0": [0, 2, 4, 6, 8], "1": [1, 3, 5, 7, 9]}


def reader_of(stepping: SteppingReader, **options: object) -> SplitFetcherReader[SourceSplit]:
    return SplitFetcherReader(lambda: stepping, ManualReaderContext(), **options)  # type: ignore[arg-type]


def start(reader: SourceReader[SourceSplit], *splits: SourceSplit) -> Polling:
    reader.add_splits(splits)
    reader.notify_no_more_splits()
    reader.start()
    return Polling(reader)


def opened() -> None:
    """SRC-01, without reassignment on recovery: a restored split is the reader's before it starts."""
    with closing(reader_of(SteppingReader({"0": [0, 1, 2]}))) as reader:
        polling = start(reader, SourceSplit(split_id="0", start=1))
        polling.to_the_end()
        assert polling.values() == [1, 2]


def stopped() -> None:
    """SRC-02: there is no drain; the end is said once, when all that was there is out."""
    with closing(reader_of(SteppingReader({}))) as reader:
        polling = start(reader)
        assert reader.is_available().done()
        assert reader.poll_next(polling.output) is InputStatus.END_OF_INPUT


def snapshot() -> None:
    """SRC-03: restored and added splits are both in the state."""
    with closing(reader_of(SteppingReader({}))) as reader:
        reader.add_splits([ZERO])
        reader.start()
        reader.add_splits([ONE])
        assert reader.snapshot_state(1) == (ZERO, ONE)


def notified() -> None:
    """SRC-04: a reader that wants to know hears of each checkpoint."""

    class Hears(SplitFetcherReader[SourceSplit]):
        heard: list[tuple[str, int]] = []  # noqa: RUF012

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            self.heard.append(("complete", checkpoint_id))

        def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
            self.heard.append(("aborted", checkpoint_id))

    silent: SourceReader[SourceSplit] = reader_of(SteppingReader({}))
    hears: SourceReader[SourceSplit] = Hears(lambda: SteppingReader({}), ManualReaderContext())
    for reader in (silent, hears):
        reader.notify_checkpoint_complete(100)
        reader.notify_checkpoint_aborted(101)
    assert Hears.heard == [("complete", 100), ("aborted", 101)]


def paused_and_resumed() -> None:
    """SRC-08. One split reader is shared by all splits here; there are no others."""
    stepping = SteppingReader(EVENS_AND_ODDS, steps=1)
    with closing(reader_of(stepping)) as reader:
        polling = start(reader, ZERO, ONE)
        polling.until(lambda: len(polling.values()) == 2)
        assert set(polling.values()) == {0, 1}

        reader.pause_or_resume_splits(["0"], [])
        wait_until(lambda: stepping.paused == {"0"}, "the pause")
        stepping.allow(3)
        polling.until(lambda: len(polling.values()) == 5)
        assert set(polling.values()) == {0, 1, 3, 5, 7}

        reader.pause_or_resume_splits([], ["0"])
        wait_until(lambda: not stepping.paused, "the end of the pause")
        stepping.allow(100)
        polling.to_the_end()
        assert sorted(polling.values()) == list(range(10))


def pause_unsupported() -> None:
    """SRC-09."""
    for allow_unaligned in (True, False):
        stepping = SteppingReader(EVENS_AND_ODDS, steps=0, no_pause=["0"])
        with closing(reader_of(stepping, allow_unaligned=allow_unaligned, source="Numbers")) as reader:
            polling = start(reader, ZERO, ONE)
            reader.pause_or_resume_splits(["1"], [])
            wait_until(lambda held=stepping: held.paused == {"1"}, "the pause")  # type: ignore[misc]
            reader.pause_or_resume_splits(["0"], ["1"])
            stepping.allow(100)
            if allow_unaligned:
                polling.to_the_end()
                assert sorted(polling.values()) == list(range(10))
            else:
                with pytest.raises(NotImplementedError) as refused:
                    polling.to_the_end()
                assert isinstance(refused.value, SplitPauseUnsupported)
                assert "Numbers: cannot pause '0'" in str(refused.value)


def ended_by_a_row() -> None:
    """SRC-10."""

    def evaluator(split_id: str, rows: pa.RecordBatch) -> int | None:
        values = rows["value"].to_pylist()
        return next((index for index, value in enumerate(values) if value in {7, 15}), None)

    splits = {"0": range(10), "1": range(10, 20)}
    with closing(reader_of(SteppingReader(splits), record_evaluator=evaluator)) as reader:
        polling = start(reader, ZERO, ONE)
        polling.to_the_end()
        assert polling.values("0") == list(range(7))
        assert polling.values("1") == list(range(10, 15))
        assert sorted(polling.output.released) == ["0", "1"]


SRC: dict[str, Callable[[], None]] = {
    "SRC-01": opened,
    "SRC-02": stopped,
    "SRC-03": snapshot,
    "SRC-04": notified,
    "SRC-08": paused_and_resumed,
    "SRC-09": pause_unsupported,
    "SRC-10": ended_by_a_row,
}


@pytest.mark.parametrize("case", [case for case in family("SRC") if case["id"] in SRC], ids=case_id)
def test_source_reader(case: Case) -> None:
    SRC[case["id"]]()


def test_every_case_is_tried_or_decided_otherwise() -> None:
    ids = {case["id"] for case in family("SRC")}
    assert ids == SRC.keys() | (DEVIATIONS.keys() & ids)
    assert not SRC.keys() & DEVIATIONS.keys() - {"SRC-01", "SRC-02"}
