"""Silent splits are counted and reported by one rule, and one error serves all systems."""

from __future__ import annotations

import pytest
from lowmark.sources import MetricGroup, SourceUnavailable
from lowmark.sources.kafka import KafkaUnavailable
from lowmark.sources.kinesis import KinesisUnavailable
from lowmark.sources.kit.unanswered import LONGEST_GAP_SECONDS, SAY_AGAIN_SECONDS, Unanswered
from lowmark.sources.pravega import PravegaUnavailable


@pytest.mark.parametrize(
    ("error", "system"),
    [
        (KafkaUnavailable("broker:9092", "read", 61.2, "no leader", "wait."), "Kafka at broker:9092"),
        (KinesisUnavailable("eu-west-1", "read", 61.2, "no leader"), "Kinesis at eu-west-1"),
        (PravegaUnavailable("tcp://pravega:9090", "read", 61.2, "no leader"), "Pravega at tcp://pravega:9090"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_one_error_to_catch_says_the_same_of_every_system(error: SourceUnavailable, system: str) -> None:
    assert isinstance(error, RuntimeError), "as it was before there was one for all"
    assert (error.action, error.after_seconds, error.cause) == ("read", 61.2, "no leader")
    said = f"{system}: cannot read, tried for 61 s: no leader. Nothing was lost: the query goes on from its checkpoint"
    assert str(error).startswith(f"{said}. Hint: ")


def test_silence_of_all_is_timed_from_its_first_question_and_ends_with_one_answer() -> None:
    now = [100.0]
    unanswered = Unanswered("a system", "shards", MetricGroup(), now_seconds=lambda: now[0])
    seen = []
    for silent, asked in [(2, 2), (2, 2), (1, 2), (2, 2), (1, 1), (0, 0), (3, 3)]:
        unanswered.see(silent, asked, "a", "throttled")
        seen.append(unanswered.all_silent_seconds)
        now[0] += 7.0

    assert seen == [0.0, 7.0, 0.0, 0.0, 7.0, 0.0, 0.0]


def test_time_in_which_nobody_asks_is_not_silence() -> None:
    """With a trigger of five minutes, two hiccups in a row ended the query as if it had asked for five minutes."""
    now = [0.0]
    unanswered = Unanswered("a system", "shards", MetricGroup(), now_seconds=lambda: now[0])
    for now[0] in (0.0, 300.0, 302.0):
        unanswered.see(1, 1, "a", "throttled")
    assert unanswered.all_silent_seconds == LONGEST_GAP_SECONDS + 2.0


def test_the_log_is_told_at_once_and_then_every_ten_seconds_and_all_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, metrics = [0.0], MetricGroup()
    unanswered = Unanswered("a system", "shards", metrics, now_seconds=lambda: now[0])
    for silent in (0, 2, 2, 0, 1):
        unanswered.tell(silent, "a", "throttled")
        now[0] += SAY_AGAIN_SECONDS / 4
    unanswered.tell(1, "b", "away")

    assert caplog.messages == [
        "a system: 2 shards cannot be read at present and will be asked about again, such as a: throttled",
        "a system: 1 shard cannot be read at present and will be asked about again, such as b: away",
    ]
    assert metrics.values()["unanswered_shards"] == 6
