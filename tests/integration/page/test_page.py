"""The page without a browser: its answers, its access rules, the data that it sends of a stream, and its end."""

from __future__ import annotations

import gzip
import http.client
import importlib.resources
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration.errors import PageUnavailable
from lowmark.integration.page import picture
from lowmark.integration.page.app import PageServer
from lowmark.integration.page.look import all_services
from lowmark.integration.page.picture import SPLIT_FIELDS, Picture
from lowmark.integration.process import sockets
from lowmark.integration.run_status import run_json
from lowmark.integration.transport.driver_rpc import STATUS, Server, StatusReply, StatusRequest, handler
from lowmark.integration.verdict import VERDICTS, verdict
from lowmark.watermark import SplitStatus, explain
from lowmark.watermark.tasks.status import run_mark

from tests.integration.cli.test_cli import call
from tests.integration.coordinator.serving import private_folder
from tests.integration.metrics.test_metrics import SECOND_US, FakeRun
from tests.servers.local import LOWMARK, port_open

NAME, STATE, WATERMARK, SHOWN = (SPLIT_FIELDS.index(what) for what in ("name", "state", "watermark_us", "shown"))
ADDRESS = "unix:/run/lowmark/1.sock"


@dataclass
class FakeServices:
    """Answers as services do, without Spark: `runs` by address, or why one gives no status."""

    runs: dict[str, list[FakeRun]] = field(default_factory=dict)
    asked: list[StatusRequest] = field(default_factory=list)
    broken: bool = False
    silent: dict[str, str] = field(default_factory=dict)

    def __call__(self, request: StatusRequest, address: str | None) -> dict[str, StatusReply | str]:
        self.asked.append(request)
        if self.broken:
            raise TimeoutError("the loop is busy")
        answers: dict[str, StatusReply | str] = {
            **self.silent,
            **{each: reply(runs, request) for each, runs in self.runs.items()},
        }
        return {each: answer for each, answer in answers.items() if address in (None, each)}


def reply(runs: list[FakeRun], request: StatusRequest) -> StatusReply:
    shown = []
    for run in runs:
        if request.stream in (None, run.stream):
            status = run.watermarks.status(run.now_us, limit=request.limit)
            rises = run.watermarks.rises(run.now_us) if request.limit is None else ()
            backlog_rows = run.watermarks.backlog_rows
            shown.append(replace(run.status(), status=status, backlog_rows=backlog_rows, rises=rises))
    return StatusReply("local-1", 7, [run_json(run) for run in shown], [explain(run.status) for run in shown])


@dataclass
class Clock:
    us: int = 2_000 * SECOND_US

    def __call__(self) -> int:
        return self.us


@dataclass
class Pictured:
    """A picture of fake services, and the version that a browser has."""

    services: FakeServices
    clock: Clock = field(default_factory=Clock)
    version: str | None = None

    def __post_init__(self) -> None:
        self.picture = Picture(self.services, self.clock)

    def next(self, run: str | None = None) -> dict[str, Any]:
        self.clock.us += SECOND_US
        answer = self.picture.since(self.version, run)
        self.version = answer["version"]
        return json.loads(json.dumps(answer))  # type: ignore[no-any-return]


def two_splits(token: str = "t1", stream: str = "orders") -> FakeRun:
    run = FakeRun(token, stream=stream)
    run.report({"a": 30 * SECOND_US, "b": 10 * SECOND_US}, backlog_rows={"a": 0, "b": 7})
    return run


def pictured(*runs: FakeRun) -> Pictured:
    return Pictured(FakeServices({ADDRESS: list(runs)}))


# --- the sent data ---


def test_a_query_that_goes_on_in_another_driver_is_shown_there_only() -> None:
    failed, other = two_splits("t1"), two_splits("t2")
    failed.failed = failed.ended = True
    seen = Pictured(FakeServices({ADDRESS: [failed], "unix:/run/lowmark/2.sock": [other]}))
    assert [run["id"] for run in seen.next()["runs"]] == [run_mark("t2")]
    other.ended = True
    assert [run["verdict"] for run in seen.next()["runs"]] == ["failed", "ended"]


def test_the_first_answer_is_whole_and_the_next_holds_what_changed() -> None:
    run = two_splits()
    seen = pictured(run)
    first = seen.next()
    assert (first["selected"], first["whole"], first["gone"]) == (run_mark("t1"), True, [])
    assert sorted(row[NAME] for row in first["splits"]) == ["a", "b"]
    assert (first["runs"][0]["holder"], first["runs"][0]["low_watermark_us"]) == ("b", 10 * SECOND_US)
    assert first["runs"][0]["explanation"] == explain(run.watermarks.status(run.now_us))

    assert seen.next()["splits"] == []
    run.report({"b": 12 * SECOND_US})
    changed = seen.next()
    assert (changed["whole"], [row[NAME] for row in changed["splits"]]) == (False, ["b"])
    assert changed["splits"][0][WATERMARK] == 12 * SECOND_US


def test_a_service_of_an_earlier_version_lacks_the_fields_with_a_default_and_is_shown() -> None:
    with_default = {each.name for each in fields(SplitStatus) if each.default is not MISSING}

    def earlier(request: StatusRequest, _: str | None) -> dict[str, StatusReply | str]:
        answer = reply([two_splits()], request)
        for stream in answer.streams:
            stream["splits"] = {
                name: {key: value for key, value in split.items() if key not in with_default}
                for name, split in stream["splits"].items()
            }
        return {ADDRESS: answer}

    assert with_default
    shown = Picture(earlier, Clock()).since(None, None)
    assert sorted(row[NAME] for row in shown["splits"]) == ["a", "b"]


def test_a_browser_that_missed_looks_gets_all_that_changed_since() -> None:
    run = two_splits()
    seen, other = pictured(run), None
    other = seen.next()["version"]
    run.report({"a": 40 * SECOND_US})
    seen.next()
    run.report({"b": 20 * SECOND_US})
    assert [row[NAME] for row in seen.next()["splits"]] == ["b"]
    assert sorted(row[NAME] for row in seen.picture.since(other, None)["splits"]) == ["a", "b"]


def test_a_page_that_is_loaded_again_gets_the_last_hour_and_one_that_is_open_does_not() -> None:
    run = two_splits()
    for second in (20, 30, 40):
        run.report({"b": second * SECOND_US})
    seen = pictured(run)
    first = seen.next()

    assert [low for _, low in first["rises"]][-1] == 30 * SECOND_US, "split a stands there"
    assert len(first["rises"]) == 4
    assert seen.next()["rises"] == []
    assert seen.picture.since(None, None)["rises"] == first["rises"]


def test_the_page_is_told_the_cause_and_the_wrong_clocks() -> None:
    run = two_splits()
    run.report({"a": 40 * SECOND_US}, future_rows={"b": 7}, newest_us=10**16)
    [seen] = pictured(run).next()["runs"]

    assert seen["cause"] == "wrong clock"
    assert [(name, rows, holds) for name, _, rows, _, _, holds in seen["clocks"]] == [("b", 7, True)]


@pytest.mark.parametrize("version", ["", "x", "x.1.t1", "1.2", "..", "\u0661.\u0661.t1", "9" * 300])
def test_a_version_of_another_server_or_of_nobody_is_answered_whole(version: str) -> None:
    assert pictured(two_splits()).picture.since(version, None)["whole"]


def test_one_look_serves_all_browsers_of_a_second() -> None:
    seen = pictured(two_splits())
    seen.next()
    asked = len(seen.services.asked)
    for _ in range(5):
        seen.picture.since(None, None)
    assert len(seen.services.asked) == asked


def test_a_browser_that_waited_for_the_look_of_another_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, looks at a service that hangs would take longer than a browser waits for its answer."""
    seen = pictured(two_splits())
    answer = FakeServices.__call__

    def slow(services: FakeServices, request: StatusRequest, address: str | None) -> dict[str, StatusReply | str]:
        seen.clock.us += 5 * SECOND_US
        return answer(services, request, address)

    monkeypatch.setattr(FakeServices, "__call__", slow)
    seen.next()
    asked = len(seen.services.asked)
    seen.picture.since(None, None)
    assert len(seen.services.asked) == asked


def test_browsers_on_two_streams_cost_one_look_at_each_stream_a_second() -> None:
    seen = pictured(two_splits(), two_splits("t2", "clicks"))
    for second in (1, 2):
        seen.clock.us += SECOND_US
        for _ in range(5):
            for token in ("t1", "t2"):
                answer = seen.picture.since(None, run_mark(token))
                assert (answer["selected"], len(answer["splits"])) == (run_mark(token), 2)
        assert [each.stream for each in seen.services.asked] == [None, "orders", "clicks"] * second


def test_a_stream_that_cannot_be_asked_is_asked_once_a_second() -> None:
    seen = pictured(two_splits(), two_splits("t2", "clicks"))
    seen.next()
    seen.services.broken = True
    for _ in range(5):
        for token in ("t2", "t1"):
            assert seen.picture.since(None, run_mark(token))["error"] == "the loop is busy"
    assert [each.stream for each in seen.services.asked] == [None, "orders", "clicks"]


def test_only_the_stream_in_view_is_asked_for_every_split() -> None:
    seen = pictured(two_splits(), two_splits("t2", "clicks"))
    answer = seen.next(run_mark("t2"))
    assert answer["selected"] == run_mark("t2")
    assert [(each.stream, each.limit) for each in seen.services.asked] == [(None, 10), ("clicks", None)]
    assert len(seen.next(run_mark("t1"))["splits"]) == 2  # a run that comes into view is asked for at once, and whole


def test_a_split_that_is_gone_is_told() -> None:
    run = two_splits()
    seen = pictured(run)
    seen.next()
    other = FakeRun("t1")
    other.report({"b": 11 * SECOND_US})
    seen.services.runs[ADDRESS] = [other]
    assert seen.next()["gone"] == ["a"]


def test_splits_that_come_and_go_for_ever_take_no_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "_MOST_GONE_SPLITS", 3)
    seen = pictured(two_splits())
    seen.next()
    for n in range(10):
        other = FakeRun("t1")
        other.report({f"only-{n}": 1})
        seen.services.runs[ADDRESS] = [other]
        answer = seen.next()
        assert len(seen.picture._splits[run_mark("t1")].gone) <= 3
        assert [row[NAME] for row in answer["splits"]] == [f"only-{n}"]
        assert answer["whole"] or answer["gone"]  # in both cases the browser forgets the previous split


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    seen = pictured(two_splits())
    seen.next()
    asked = len(seen.services.asked)
    seen.clock.us -= 3_600 * SECOND_US
    seen.next()
    assert len(seen.services.asked) > asked


def test_names_that_look_alike_stay_two_and_are_shown_as_explain_writes_them() -> None:
    run = FakeRun("t1")
    run.report({"a\n": 1, "a\\n": 2})
    rows = {row[NAME]: row[SHOWN] for row in pictured(run).next()["splits"]}
    assert rows == {"a\n": "a\\n", "a\\n": None}


def test_a_name_of_10_kb_is_told_by_its_beginning_and_end_where_it_is_shown() -> None:
    run = FakeRun("t1")
    run.report({"x" * 10_000 + "end": 1})
    [told] = pictured(run).next()["runs"]
    assert len(told["holder_shown"]) == 300
    assert told["holder_shown"].endswith("xend")
    assert told["holder"] == "x" * 10_000 + "end"


def test_half_a_surrogate_pair_fails_no_answer() -> None:
    run = FakeRun("t1")
    run.report({"half \ud83d": 1})
    with serving(FakeServices({ADDRESS: [run]})) as port:
        status, _, body = get(port, "/state")
    assert (status, json.loads(body)["runs"][0]["holder_shown"]) == (200, "half \\ud83d")


def test_a_service_that_is_gone_leaves_what_was_known_of_it() -> None:
    seen = pictured(two_splits())
    seen.next()
    del seen.services.runs[ADDRESS]
    gone = seen.next(run_mark("t1"))
    assert (gone["services"], [run["verdict"] for run in gone["runs"]]) == ([], ["gone"])
    assert (gone["selected"], gone["runs"][0]["holder"], gone["splits"]) == (run_mark("t1"), "b", [])


@pytest.mark.parametrize("named_later", [False, True])
def test_a_query_that_begins_again_in_another_driver_is_not_gone_any_more(named_later: bool) -> None:
    seen = pictured(two_splits())
    seen.next()
    del seen.services.runs[ADDRESS]
    assert [run["verdict"] for run in seen.next()["runs"]] == ["gone"]
    again = two_splits("t2")
    again.query = None if named_later else "q"
    seen.services.runs["unix:/run/lowmark/2.sock"] = [again]
    first = seen.next()["runs"]
    again.query = "q"
    assert ("gone" in [run["verdict"] for run in first]) is named_later
    assert [run["id"] for run in seen.next()["runs"]] == [run_mark("t2")]


def test_of_two_drivers_that_name_their_queries_alike_one_that_is_gone_is_told() -> None:
    seen = Pictured(FakeServices({ADDRESS: [two_splits("t1")], "unix:/run/lowmark/2.sock": [two_splits("t2")]}))
    seen.next()
    del seen.services.runs[ADDRESS]
    for _ in range(2):
        assert [run["id"] for run in seen.next()["runs"] if run["verdict"] == "gone"] == [run_mark("t1")]


def test_of_many_that_are_gone_those_that_need_a_person_are_kept() -> None:
    runs = [two_splits(f"t{n}", f"orders-{n}") for n in range(60)]
    runs[7].failed = runs[7].ended = True
    seen = pictured(*runs)
    seen.next()
    del seen.services.runs[ADDRESS]
    for _ in range(3):
        gone = seen.next()["runs"]
        assert (len(gone), {run["verdict"] for run in gone}) == (50, {"gone"})
        assert run_mark("t7") in {run["id"] for run in gone}

    seen.services.runs["unix:/run/lowmark/2.sock"] = [two_splits("t99", "clicks")]
    seen.next()
    del seen.services.runs["unix:/run/lowmark/2.sock"]
    left = {run["id"] for run in seen.next()["runs"]}
    assert (len(left), run_mark("t99") in left) == (50, True), "the newest loss takes the place of an older one"


def test_services_that_cannot_be_asked_are_an_error_that_is_shown_and_ends() -> None:
    seen = pictured(two_splits())
    seen.next()
    seen.services.broken = True
    lost = seen.next()
    assert (lost["error"], lost["runs"][0]["holder"]) == ("the loop is busy", "b")
    seen.services.broken = False
    assert seen.next()["error"] is None


def test_a_service_that_answers_with_an_error_is_named_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: StatusRequest) -> StatusReply:
        raise KeyError("t7")

    runs = [two_splits()]
    with private_folder() as folder, ExitStack() as servers:
        monkeypatch.setattr(sockets, "folders", lambda: [folder])

        def serve(status: Callable[[StatusRequest], StatusReply]) -> str:
            address = sockets.new_address()
            servers.callback(Server(address, handler(STATUS, status)).stop)
            return address

        fails = serve(fail)
        shown = Picture(all_services, Clock())
        told = [f"the service at {fails} answers with an error: NOT_FOUND: 't7'"]
        alone = shown.since(None, None)
        assert (alone["silent"], alone["services"], alone["runs"], alone["error"]) == (told, [], [], None)
        serve(lambda request: reply(runs, request))
        both = Picture(all_services, Clock()).since(None, None)
        assert (both["silent"], len(both["services"]), len(both["splits"]), both["error"]) == (told, 1, 2, None)


def test_every_split_of_a_stream_is_asked_of_its_own_service_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may hang, or have 5,000 splits of a stream with the same name."""
    asked: list[tuple[str, str | None]] = []
    with private_folder() as folder, ExitStack() as servers:
        monkeypatch.setattr(sockets, "folders", lambda: [folder])
        for name, run in {"own": two_splits("t1"), "other": two_splits("t2")}.items():

            def status(request: StatusRequest, name: str = name, run: FakeRun = run) -> StatusReply:
                asked.append((name, request.stream))
                return reply([run], request)

            servers.callback(Server(sockets.new_address(), handler(STATUS, status)).stop)
        shown = Picture(all_services, Clock()).since(None, None)
        assert len(shown["runs"]) == 2
        shown = Picture(all_services, Clock()).since(None, run_mark("t1"))
    assert (shown["selected"], len(shown["splits"])) == (run_mark("t1"), 2)
    assert asked.count(("own", None)) == asked.count(("other", None)) == 2
    assert asked[-1] == ("own", "orders")
    assert len([stream for _, stream in asked if stream is not None]) == 2, "one in each picture"


def test_nobody_is_an_answer_too() -> None:
    answer = Pictured(FakeServices()).next()
    assert (answer["services"], answer["runs"], answer["selected"], answer["splits"]) == ([], [], None, [])


@pytest.mark.slow
def test_five_thousand_splits_cost_little() -> None:
    run = FakeRun("t1")
    run.report({f"device-{n:05}": n for n in range(5_000)})
    seen = pictured(run)
    assert len(seen.next()["splits"]) == 5_000
    run.report({"device-00007": 9_999})
    assert len(json.dumps(seen.next())) < 10_000  # one split of 5,000


# --- the state of a stream ---

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def at(minutes: float) -> str:
    return (NOON + timedelta(minutes=minutes)).isoformat()


@pytest.mark.parametrize(
    ("stream", "run", "word"),
    [
        ({}, {"failed": True, "ended": True}, "failed"),
        ({}, {"refused": True}, "failed"),
        ({}, {"ended": True}, "ended"),
        ({}, {"emits": False}, "measuring"),
        ({"since": at(-6)}, {"backlog_rows": 1}, "stuck"),
        ({"since": at(-6)}, {"backlog_rows": 0}, "standing"),
        ({"since": at(-6)}, {"backlog_rows": 9, "alignment": {"waiting": True}}, "standing"),
        ({"since": at(-6)}, {"backlog_rows": 9, "alignment": {"waiting": False}}, "stuck"),
        ({"since": at(-6)}, {"backlog_rows": None}, "standing"),
        ({"since": at(-6)}, {"rows_at": at(-1)}, "stuck"),
        ({"since": at(-6)}, {"rows_at": at(-5.9)}, "standing"),
        ({"since": at(-7)}, {"backlog_rows": 0, "batch_since": at(-6)}, "stuck"),
        ({"since": at(-7)}, {"backlog_rows": 0, "batch_since": at(-4)}, "standing"),
        ({"since": at(-4)}, {"backlog_rows": 0, "batch_since": at(-60)}, "moving"),
        ({"since": at(-60), "silent_since": at(-30)}, {"rows_at": at(-30)}, "silent"),
        ({"since": at(-4)}, {"backlog_rows": 1}, "moving"),
        ({"since": at(-4), "low_watermark_us": None}, {}, "waiting"),
    ],
)
def test_the_word_for_a_stream(stream: dict[str, Any], run: dict[str, Any], word: str) -> None:
    known = {"low_watermark_us": 0, "silent_since": None, "splits": {}, **stream, "run": run}
    assert verdict(known, NOON) == word
    assert word in VERDICTS


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_word_goes_by_the_service_s_own_time_when_the_wall_clock_was_set(hours: int) -> None:
    def known(minutes: float) -> dict[str, Any]:
        run = {"backlog_rows": 3, "now": NOON.isoformat()}
        return {"since": at(minutes), "low_watermark_us": 0, "splits": {}, "run": run}

    wall = NOON + timedelta(hours=hours)
    assert verdict(known(-6), wall) == "stuck"
    assert verdict(known(-4), wall) == "moving"


# --- the server ---


class serving:  # noqa: N801  # reads as a word of a sentence
    def __init__(self, services: FakeServices) -> None:
        self.services = services

    def __enter__(self) -> int:
        self.server = PageServer(self.services)
        return self.server.port

    def __exit__(self, *_: object) -> None:
        self.server.stop()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(FakeServices({ADDRESS: [two_splits()]})) as port:
        yield port


def get(
    port: int, path: str, method: str = "GET", host: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", f"127.0.0.1:{port}" if host is None else host)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/icon.svg", "/state", "/nothing"])
def test_every_answer_is_as_strict_as_can_be(port: int, path: str) -> None:
    status, headers, _ = get(port, path)
    assert status == (404 if path == "/nothing" else 200)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] in ("no-cache", "no-store")
    assert not {"set-cookie", "access-control-allow-origin", "server"} & headers.keys()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"])
@pytest.mark.parametrize("path", ["/", "/state"])
def test_nothing_can_be_changed(port: int, method: str, path: str) -> None:
    status, headers, _ = get(port, path, method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    assert "content-security-policy" in headers


def test_a_head_is_an_answer_without_its_body(port: int) -> None:
    for path in ("/", "/state"):
        status, headers, body = get(port, path, "HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 0


def test_a_state_is_packed_for_a_browser_that_takes_it(port: int) -> None:
    """A summary of 200 queries has 700 kB, and goes over the network every second where a port is forwarded."""
    plain = get(port, "/state")
    packed = get(port, "/state", headers={"Accept-Encoding": "gzip, deflate, br"})
    assert ("content-encoding" in plain[1], packed[1]["content-encoding"]) == (False, "gzip")
    assert json.loads(gzip.decompress(packed[2])).keys() == json.loads(plain[2]).keys()
    assert int(packed[1]["content-length"]) == len(packed[2]) < len(plain[2]) / 2


def test_two_hosts_are_none(port: int) -> None:
    assert get(port, "/state", headers={"Host": "localhost"})[0] in (400, 421)


@pytest.mark.parametrize(
    "path", ["/../endpoint.py", "/%2e%2e/endpoint.py", "/..%2fendpoint.py", "//etc/passwd", "/app.py"]
)
def test_only_the_page_s_own_files_are_served(port: int, path: str) -> None:
    assert get(port, path)[0] in (404, 405)


@pytest.mark.parametrize("query", [f"run={'x' * 401}", "a=1&b=2&c=3", "&" * 100])
def test_a_question_that_is_too_long_is_refused(port: int, query: str) -> None:
    assert get(port, f"/state?{query}")[0] == 400


@pytest.mark.parametrize("query", ["run", "run=%ff", "since=&run=", "x=y", "run=a&run=b"])
def test_a_question_of_nobody_s_is_answered_as_the_first(port: int, query: str) -> None:
    status, _, body = get(port, f"/state?{query}")
    assert (status, json.loads(body)["whole"]) == (200, True)


def test_a_package_in_a_zip_file_has_the_page_too(tmp_path: Path) -> None:
    """`spark-submit --py-files` brings such a package."""
    zipped = tmp_path / "lowmark.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        for name in ("", "watermark", "sources", "integration"):
            folder = Path(str(importlib.resources.files("lowmark"))) / name
            for file in folder.rglob("*") if name else [folder / "__init__.py"]:
                if file.is_file() and file.suffix != ".pyc":
                    archive.write(file, Path("lowmark", name, file.relative_to(folder)))
    code = (
        "from lowmark.integration.page.app import PageServer\n"
        "page = PageServer(lambda *_: {})\n"
        "print(__import__('urllib.request').request.urlopen(page.address + 'page.css').status)\n"
        "page.stop()"
    )
    environment = {**os.environ, "PYTHONPATH": str(zipped)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout) == (0, "200\n"), ran.stderr


def test_files_are_asked_again_and_not_sent_again(port: int) -> None:
    _, headers, body = get(port, "/page.js")
    assert (headers["content-type"].split(";")[0], len(body) > 1_000) == ("text/javascript", True)
    assert get(port, "/page.js", headers={"If-None-Match": headers["etag"]})[0] == 304


def test_a_port_that_is_taken_is_a_clear_error(port: int) -> None:
    with pytest.raises(PageUnavailable) as refused:
        PageServer(FakeServices(), port=port)
    assert str(refused.value) == (
        f"cannot serve the page on port {port} of 127.0.0.1: another process, or another service of this process, "
        "listens there already. Hint: pass page_port=0 (on the command line --port 0) for any free port, the number of "
        "another port, or page_port=None for no page."
    )
    with pytest.raises(ValueError, match="page_port is 70000, expected a number from 0 to 65535"):
        PageServer(FakeServices(), port=70_000)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_serves_until_it_is_told_to_end(number: signal.Signals, code: int, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}  # a folder without services
    process = subprocess.Popen([*LOWMARK, "page", "--json"], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        port = int(told["address"].rstrip("/").rpartition(":")[2])
        status, _, body = get(port, "/state")
        assert (status, "services" in json.loads(body), told["pid"]) == (200, True, process.pid)
        process.send_signal(number)
        assert process.wait(60) == code
        assert not port_open(port)
    finally:
        process.kill()
        process.communicate()


def test_the_command_says_when_its_port_is_taken(port: int) -> None:
    code, out, err = call("page", "--port", str(port))
    assert (code, out) == (2, "")
    assert err.startswith(f"lowmark: cannot serve the page on port {port} of 127.0.0.1: another process")
