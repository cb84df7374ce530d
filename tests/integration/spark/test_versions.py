"""Spark 4.0, 4.1 and 4.3 beside the version of all other tests: wrap, restart, read, runs that end by themselves.

Each version has its own environment, which `make` sets up; `make test SPARK=4.0.5` runs every test on one of them.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from lowmark.integration.errors import SessionUnfit, WrapRefused
from lowmark.integration.spark import available_now, classic
from lowmark.integration.spark.classic import QueryEvents, add_listener
from lowmark.integration.spark.versions import check_session, check_zone
from lowmark.sources.spark.versions import NEWEST_TRIED, TRIED, UnsupportedSpark, check_version, major_minor
from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampType

from tests.commands.version_table import PINNED, environments, tried
from tests.integration.feed import Feed, Row, us
from tests.servers.local import ROOT, require_java, unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHERS = [version for version in environments() if version != PINNED]
STEP = 0.001
SECONDS = 480  # 30 on two idle cores, and 240 where two whole runs share them


# The files that each stay of the queries reads, a file a batch: native on the oldest Spark, then adopted on the newest.
STAYS: dict[str, list[list[Row]]] = {
    "native": [[("fast", 1, 101), ("slow", 2, 102)], [("fast", 3, 111), ("slow", 4, 106)]],
    "wrapped": [
        [("fast", 6, 301), ("slow", 4, 114), ("slow", 7, 121)],
        [("fast", 8, 311), ("slow", 9, 131)],
        [("fast", 98, 1000), ("slow", 99, 1000)],
    ],
}


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Runs `version_app` on a version, once for all tests; queries with timers stay on the oldest and the newest."""
    require_java()
    timers = tmp_path_factory.mktemp("timers")
    feed, sparks = Feed(cast("SparkSession", None), timers / "feed"), environments()
    kinds = dict(zip((min(sparks), max(sparks)), STAYS, strict=True))

    @functools.cache
    def played(version: str) -> dict[str, Any]:
        if not sparks[version].exists():
            unavailable(f"the environment of Spark {version}", "run make sparks")
        stay: list[str] = []
        if version in kinds:
            for batch in STAYS[kinds[version]]:
                feed.put(*batch)
            stay = [str(timers), kinds[version]]
        return tried(sparks[version], tmp_path_factory.mktemp(version), *stay, seconds=SECONDS)

    return played


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("version", OTHERS)
def test_wrap_restart_adopt_and_read(version: str, play: Callable[[str], dict[str, Any]]) -> None:
    came = play(version)
    assert came["pyspark"] == version

    # The same on every version: the measurements, the moments at which windows come out, no drops.
    slow, fast = [[at, "slow", 1] for at in (20.0, 30.0)], [[at, "fast", 1] for at in (500.0, 510.0)]
    assert came["restarted"] == {
        "rows": slow + fast, "dropped": 0, "low": 1000 - 10 - STEP, "measured": 2, "lacks": [],
    }  # fmt: skip
    assert came["available_now"] == {
        "ended": True, "rows": slow + fast, "batches": 4, "low": 1000 - 10 - STEP, "rows_measured": 9,
        "bad": [1, 1, 1],
    }  # fmt: skip
    fed = [(20, 21), (31, 33), (301, 41), (310, 50), (320, 315)]
    once = sorted([at // 10 * 10.0, split, 1] for both in fed for split, at in zip(("fast", "slow"), both, strict=True))
    assert came["adopted"] == {"rows": once, "dropped": 0, "read_again": 0, "told_how": True}
    assert came["read"]["emitted"] == {"a": 52, "b": 27}
    assert (came["read"]["dropped"], came["read"]["low"]) == (0, 1_200 - 10 - STEP)
    assert came["read"]["largest"] <= 41, "a batch is as large as asked, and a heartbeat"
    assert came["watched"]["late"] == (None if version < "4.2" else {"fast": 0, "slow": 1})
    counted = [
        [at, split, 2 if (at, split) == (40.0, "slow") else 1]
        for at in (10.0, 40.0, 60.0)
        for split in ("fast", "slow")
    ]
    assert came["late"] == {"rows": counted, "dropped": [15], "marked": [15, 45]}
    cost = [line for line in came["told"] if "pass through Python once" in line]
    assert len(cost) == (1 if version < "4.2" else 0), "what the second transport costs is told once"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 60)
def test_timers_of_python_go_on_under_a_newer_spark(play: Callable[[str], dict[str, Any]]) -> None:
    """Timers of transformWithState, timeouts of applyInPandasWithState: the newest Spark fires those of the oldest.

    Python's workers pickle keys and values on their way to the JVM, which stores them as rows of Spark's own.
    """
    fired: dict[str, list[Row]] = {"alarmed": [], "timed_out": []}
    for version in (min(environments()), max(environments())):
        came = play(version)["timers"]
        assert came["dropped"] == 0
        for name, rows in fired.items():
            rows += map(tuple, came[name])

    fed = [row for batches in STAYS.values() for batch in batches for row in batch if row[1] < 98]
    assert sorted(fired["alarmed"]) == sorted((split, us(at + 10) // 1_000) for split, _, at in fed)
    assert sorted(fired["timed_out"]) == sorted(Counter(v for _, v, _ in fed).items())


def test_a_version_outside_is_refused_with_the_range() -> None:
    for fits in ("4.0.0", "4.0.5", "4.3.0", "4.9.1"):
        check_version(fits)
    for outside in ("3.5.7", "5.0.0", "5.0.0.dev1", "nightly"):
        with pytest.raises(UnsupportedSpark, match=rf"pyspark is version {re.escape(outside)}, .* Spark >=4\.0,<5\. H"):
            check_version(outside)


def test_a_spark_newer_than_the_newest_that_was_tried_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    tried, newer = (f"{NEWEST_TRIED[0]}.{NEWEST_TRIED[1] + more}.1" for more in (0, 1))
    session: Any = SimpleNamespace(version=tried)
    check_session(session)
    assert not caplog.messages, "it was tried"
    session.version = newer
    for _ in range(2):
        check_session(session)
    (said,) = caplog.messages
    assert said.startswith(
        f"Spark {newer} is newer than {TRIED.rpartition(' ')[2]}, the newest that lowmark was tried with. Hint: "
    )


@pytest.mark.parametrize("zone", ["GMT+8", "Z", "PST"])
def test_functions_in_a_zone_that_only_java_knows_are_refused(zone: str) -> None:
    def frame(zone: str | None, *kinds: DataType) -> Any:
        session = SimpleNamespace(conf=SimpleNamespace(get=lambda _: zone))
        fields = [StructField(f"column {number}", kind) for number, kind in enumerate(kinds)]
        return SimpleNamespace(sparkSession=session, schema=StructType(fields))

    with pytest.raises(WrapRefused, match=rf'zone of the session is "{re.escape(zone)}", .* Hint: set .* "\+08:00"'):
        check_zone(frame(zone, StringType(), TimestampType()), "orders")
    check_zone(frame(zone, StringType()), "orders")  # no time to see
    for known in ("UTC", "+08:00", "Asia/Shanghai"):
        check_zone(frame(known, TimestampType()), "orders")


def test_the_newest_that_was_tried_is_the_newest_that_tests_run_on() -> None:
    assert max(map(major_minor, environments())) == NEWEST_TRIED


def test_the_version_of_the_other_tests_is_the_pinned_one_everywhere() -> None:
    assert f"\npyspark=={PINNED}\n" in (ROOT / "constraints.txt").read_text()
    assert (ROOT / "Makefile").read_text().count(PINNED) == 3, "two lines and the comment above them"


@pytest.mark.parametrize(
    "asked", ["from lowmark.integration import LowWatermarkService", "import lowmark.sources.spark"]
)
def test_an_older_spark_is_refused_before_it_lacks_anything(asked: str, tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "3.5.7"\n')
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{asked}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pyspark is version 3.5.7, and lowmark works with Spark >=4.0,<5. Hint: " in ran.stderr


def test_what_is_declared_is_what_is_checked() -> None:
    needs = [need for need in importlib.metadata.requires("lowmark") or () if need.startswith("pyspark")]
    assert needs == ["pyspark<5,>=4.0"]


def test_a_query_that_cannot_be_made_to_end_by_itself_is_told_though_the_fault_has_no_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would run a single batch, emit nothing, and say nothing."""
    monkeypatch.setattr(available_now, "PASSES_LIMITS", False)
    monkeypatch.setattr(available_now, "_keep_going", lambda *_: next(iter(())))
    kind = SimpleNamespace(getSimpleName=lambda: "AvailableNowTrigger$")
    execution = SimpleNamespace(trigger=lambda: SimpleNamespace(getClass=lambda: kind))
    told: list[tuple[Sequence[str], str | None]] = []
    query = SimpleNamespace(streamingQuery=lambda: execution)
    available_now.let_it_end(cast("SparkSession", None), query, ["s"], lambda *fault: told.append(fault))
    assert told == [(["s"], "StopIteration: ")]


def test_a_spark_without_the_listener_is_refused_with_the_versions_that_have_it() -> None:
    # py4j returns an object that cannot be called for a class that is not there.
    package: Any = SimpleNamespace(PythonStreamingQueryListenerWrapper=object())
    for name in ("streaming", "sql", "spark", "apache", "org"):
        package = SimpleNamespace(**{name: package})
    context = SimpleNamespace(_gateway=SimpleNamespace(_callback_server=object()))
    spark: Any = SimpleNamespace(version="4.9", sparkContext=context, _jvm=package)
    with pytest.raises(SessionUnfit, match=r"PythonStreamingQueryListenerWrapper, got Spark .* without it\. Hint: use"):
        add_listener(spark, QueryEvents(lambda _kind, _event: None))


def test_a_spark_that_lists_a_query_after_its_start_is_told_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise nobody learns why the query's adopted state was not taken over."""
    monkeypatch.setattr(classic, "prefer_own_python", lambda _: None)
    monkeypatch.setattr(classic, "register_class", lambda *_: None)
    heard: list[QueryEvents] = []
    monkeypatch.setattr(classic, "add_listener", lambda _, events: heard.append(events))
    streams = SimpleNamespace(get=lambda _: None)
    spark: Any = SimpleNamespace(_jsparkSession=SimpleNamespace(streams=lambda: streams))
    taken: list[str] = []
    nothing: Any = None
    classic.ClassicSession(spark).listen(lambda kind, _: taken.append(kind), nothing, nothing, nothing)
    heard[0].onQueryStarted(SimpleNamespace(id=lambda: "q"))

    assert "could not look at a query that starts; it goes on as Spark would have it" in caplog.text
    assert "Spark lists a query before the query starts" in caplog.text
    assert taken == ["started"]
