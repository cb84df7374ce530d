"""The content of the page, and its changes since a browser last asked.

A browser asks every second, with its version of the picture. However many browsers ask, the services are asked at most
once a second for a summary of every stream, and for every split of each stream that is in view in a browser.

Names travel unchanged, so two names that look alike stay two, and beside them escaped for display, as in `explain`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from operator import itemgetter
from typing import Any

from lowmark.integration.transport.driver_rpc import StatusReply, StatusRequest, newest
from lowmark.integration.verdict import VERDICTS, verdict
from lowmark.watermark import SetByHand
from lowmark.watermark.moment import none_first, us_of
from lowmark.watermark.printable import printable
from msgspec import convert

from .look import Look

_COPIED = (
    "state", "watermark_us", "backlog_rows", "rows", "last_report", "lagging", "late_reports", "pending_since",
)  # fmt: skip
_copied = itemgetter(*_COPIED)
SPLIT_FIELDS = ("name", "shown", *_COPIED, "why", "passed_over", "native_late_rows")
"""What each split's list holds, in the order of `_row`; `shown` is None if it equals the name."""

_GONE = "gone"  # the service no longer answers
_ORDER = ("failed", "stuck", _GONE, *(word for word in VERDICTS if word not in ("failed", "stuck")))
_MOST_GONE = 50
_MOST_GONE_SPLITS = 10_000
_LOOK_US = 900_000
_BRIEFLY = 10  # splits of a stream out of view: those that `explain` names
_MOST_LISTED = 50
_MOST_NAME, _MOST_SENTENCE = 300, 2_000  # characters
_SENTENCES = ("why", "next")
_NUMBERS = (
    "low_watermark_us", "native_watermark_us", "native_late_rows", "since", "silent_since", "batches", "last_batch_id",
    "returned_late", "regressions", "counts", "states",
)  # fmt: skip

Row = list[Any]


@dataclass
class _Splits:
    """The splits of one run, each with the version of its last change, and the rises of the low watermark."""

    rows: dict[str, tuple[int, Row]] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    rises: list[list[int]] = field(default_factory=list)

    def take(self, rows: Iterable[Row], version: int) -> None:
        seen = set()
        for row in rows:
            name = row[0]
            seen.add(name)
            before = self.rows.get(name)
            if before is None or before[1] != row:
                self.rows[name] = version, row
                self.gone.pop(name, None)
        for name in self.rows.keys() - seen:
            del self.rows[name]
            self.gone[name] = version


class Picture:
    """The newest look, for any number of browsers. Thread-safe."""

    def __init__(self, look: Look, now_us: Callable[[], int]) -> None:
        self._look, self._now_us = look, now_us
        self._lock = threading.Lock()
        self._born = _token()  # makes an open page begin anew after a restart
        self._version = 0
        self._looked_us: int | None = None
        self._asked: set[tuple[str, str]] = set()  # (address, stream) that was seen in full since the last summary
        self._services: list[dict[str, Any]] = []
        self._runs: dict[str, dict[str, Any]] = {}
        self._splits: dict[str, _Splits] = {}
        self._silent: list[str] = []
        self._error: str | None = None

    def since(self, version: str | None, run: str | None) -> dict[str, Any]:
        """Return the changes since a browser's version, for JSON.

        Args:
            version: the "version" of the browser's last answer, or None.
            run: the run in view; None or unknown: the run that needs attention most.

        Returns:
            Among others: splits (the changed ones, each as a list of `fields`), gone (names), whole (these are all
            splits, forget others), rises (of the last hour, as (when, low watermark), only with whole), silent (why
            single services give no status), error (why the services could not be asked, or None).
        """
        with self._lock:
            self._look_again(run)
            selected = self._selected(run)
            splits = _Splits() if selected is None else self._splits.setdefault(selected, _Splits())
            had = self._had(version, selected)
            return {
                "version": f"{self._born}.{self._version}.{selected or ''}",
                "now_us": self._now_us(),
                "silent": self._silent,
                "error": self._error,
                "services": self._services,
                "runs": list(self._runs.values()),
                "selected": selected,
                "whole": had is None,
                "rises": splits.rises if had is None else [],
                "fields": SPLIT_FIELDS,
                "splits": [row for at, row in splits.rows.values() if had is None or at > had],
                "gone": [name for name, at in splits.gone.items() if had is not None and at > had],
            }

    def _had(self, version: str | None, selected: str | None) -> int | None:
        """The number in a version; None if the browser must get the whole run."""
        born, _, rest = (version or "").partition(".")
        number, _, run = rest.partition(".")
        if born != self._born or run != (selected or "") or not (number.isascii() and number.isdigit()):
            return None
        return int(number[:18])

    def _selected(self, run: str | None) -> str | None:
        if run is not None and run in self._runs:
            return run
        return next(iter(self._runs), None)

    def _look_again(self, run: str | None) -> None:
        now_us = self._now_us()
        ago_us = -1 if self._looked_us is None else now_us - self._looked_us
        is_fresh = 0 <= ago_us < _LOOK_US  # below 0: the clock was set back
        try:
            if not is_fresh:
                self._look_briefly(datetime.fromtimestamp(now_us / 1e6, timezone.utc))
                self._error = None
            if self._error is None:
                self._look_closely(run)
        except Exception as failed:  # noqa: BLE001  # the page shows the error beside the last look
            self._error = printable(str(failed) or type(failed).__name__)
        if not is_fresh:
            self._looked_us = self._now_us()  # the end of the look, because browsers that waited for it take it

    def _look_briefly(self, now: datetime) -> None:
        self._asked.clear()
        answers = self._look(StatusRequest(limit=_BRIEFLY), None)
        replies = {address: answer for address, answer in answers.items() if not isinstance(answer, str)}
        self._silent = [_shown(answer, _MOST_SENTENCE) for answer in answers.values() if isinstance(answer, str)]
        self._services = [
            {"address": address, "application": reply.application, "pid": reply.pid}
            for address, reply in sorted(replies.items())
        ]
        runs = [_run(address, stream, text, now) for address, stream, text in newest(replies.items())]
        runs += self._left_behind(replies.keys(), runs)
        self._runs = {each["id"]: each for each in sorted(runs, key=_by_need)}
        for gone in self._splits.keys() - self._runs.keys():
            del self._splits[gone]

    def _left_behind(self, answered: Container[str], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The last known runs of services that no longer answer, marked as gone: the newest losses, then by need.

        A run is left out once its query begins again in another service, because a driver was started again.
        """
        seen, before = {run["id"] for run in runs}, {(run["id"], run["query"]) for run in self._runs.values()}
        begun = {(run["name"], run["query"]) for run in runs if (run["id"], run["query"]) not in before}
        gone = [
            run
            for run in self._runs.values()
            if run["id"] not in seen
            and run["address"] not in answered
            and (run["query"] is None or (run["name"], run["query"]) not in begun)
        ]
        gone.sort(key=lambda run: run["verdict"] == _GONE)
        return [{**run, "verdict": _GONE} for run in gone[:_MOST_GONE]]

    def _look_closely(self, run: str | None) -> None:
        selected = self._selected(run)
        if selected is None:
            return
        address, name = self._runs[selected]["address"], self._runs[selected]["name"]
        if (address, name) in self._asked:
            return
        self._asked.add((address, name))
        self._version += 1
        # One service is asked, because another may hang, or have a stream of the same name.
        reply = self._look(StatusRequest(stream=name), address).get(address)
        for stream in reply.streams if isinstance(reply, StatusReply) else []:
            if _id(stream) not in self._runs:  # an earlier run, or one that has begun since the summary
                continue
            passed = frozenset(stream["passed_over"])
            rows = (_row(split, of, passed) for split, of in stream["splits"].items())
            splits = self._splits.setdefault(_id(stream), _Splits())
            splits.rises = _by_the_wall_clock(stream["run"], self._now_us())
            splits.take(rows, self._version)
            if len(splits.gone) > _MOST_GONE_SPLITS:  # forgetting names means that every browser must begin anew
                splits.gone.clear()
                self._born = _token()


def _run(address: str, stream: Mapping[str, Any], explanation: str, now: datetime) -> dict[str, Any]:
    """A stream in a query as the page knows it, without its splits."""
    holder = stream["holder"]
    return {
        "id": _id(stream),
        "address": address,
        "name": stream["name"],
        "shown": _shown(stream["name"]),
        "query": None if stream["query"] is None else _shown(stream["query"]),
        "verdict": verdict(stream, now),
        "holder": holder,
        "holder_shown": None if holder is None else _shown(holder),
        **{what: _shown(stream[what], _MOST_SENTENCE) for what in _SENTENCES},
        **{what: stream[what] for what in _NUMBERS},
        "left_out": [[_shown(name), _shown(why, _MOST_SENTENCE)] for name, why in stream["left_out"][:_MOST_LISTED]],
        "passed_over": [_shown(name) for name in stream["passed_over"][:_MOST_LISTED]],
        "held": [
            [None if spell["holder"] is None else _shown(spell["holder"]), spell["since"], spell["until"]]
            for spell in stream["held"][:_MOST_LISTED]
        ],
        "cause": stream["cause"],
        "set_by_hand": [printable(str(each)) for each in convert(stream.get("set_by_hand", []), list[SetByHand])],
        "clocks": [_clock(clock, stream) for clock in stream["wrong_clocks"]],
        "explanation": explanation,
        "run": stream["run"],
    }


def _by_the_wall_clock(run: Mapping[str, Any], now_us: int) -> list[list[int]]:
    """The rises of a run, whose service has a clock of its own, now, because a service that is gone tells no time."""
    now = run.get("now")
    ahead_us = 0 if now is None else now_us - us_of(datetime.fromisoformat(now))
    return [[at_us + ahead_us, low_us] for at_us, low_us in run["rises"]]


def _clock(clock: Mapping[str, Any], stream: Mapping[str, Any]) -> list[Any]:
    """A wrong clock as a list: name, shown name, rows, time of the first row and of the last, whether it holds."""
    holds = stream["cause"] == "wrong clock" and clock["split"] == stream["holder"]
    return [clock["split"], _shown(clock["split"]), clock["rows"], clock["since"], clock["last"], holds]


def _token() -> str:
    return uuid.uuid4().hex[:8]


def _id(stream: Mapping[str, Any]) -> str:
    return str(stream["run"]["mark"])


def _row(name: str, split: Mapping[str, Any], passed: frozenset[str]) -> Row:
    shown, why = _shown(name), _shown(split["why"], _MOST_SENTENCE)
    native_late_rows = split.get("native_late_rows", 0)  # a field with a default: an earlier service may lack it
    return [name, None if shown == name else shown, *_copied(split), why, name in passed, native_late_rows]


def _shown(text: str, most: int = _MOST_NAME) -> str:
    """Return a text as `explain` shows it; of a very long name, the beginning and the end."""
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 41]}…{text[-40:]}"


def _by_need(run: Mapping[str, Any]) -> tuple[int, bool, int, str]:
    return _ORDER.index(run["verdict"]), *none_first(run["low_watermark_us"]), run["id"]
