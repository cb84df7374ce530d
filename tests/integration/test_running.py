"""A session has one service. No Spark here: sessions and services are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.driver import service as service_module
from lowmark.integration.driver.running import Running
from lowmark.integration.errors import ServiceDiffers


class Session:
    """A session; others with its number are the same one to the JVM."""

    def __init__(self, number: int) -> None:
        self.number, self._jsparkSession = number, self
        self.sparkContext = SimpleNamespace(_jsc="it runs")

    def equals(self, other: Session) -> bool:
        return self.number == other.number


class Service(LowWatermarkService):
    """What `get_or_create` makes and finds, without the rest."""

    def __init__(self, spark: Any, **arguments: Any) -> None:
        self._made_with = {"metrics_port": None, "job": None, **arguments}
        self.error: BaseException | None = None
        self.stops = 0
        service_module._RUNNING.add(self, spark)

    @property
    def failed(self) -> BaseException | None:
        return self.error

    def stop(self) -> None:
        self.stops += 1
        service_module._RUNNING.remove(self)


@pytest.fixture(autouse=True)
def nobody_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_RUNNING", Running())


def had(session: Session, **arguments: Any) -> Service:
    return Service.get_or_create(session, **arguments)  # type: ignore[arg-type]


def test_a_session_has_one_service_and_another_session_has_its_own() -> None:
    first = had(Session(1), metrics_port=0)

    assert had(Session(1)) is had(Session(1), metrics_port=0) is first, "to the JVM it is the same session"
    assert had(Session(2)) is not first
    first.stop()
    assert had(Session(1)) is not first


def test_arguments_that_differ_are_named_and_those_that_are_not_said_may_be_as_they_are() -> None:
    session = Session(1)
    first = had(session, metrics_port=0)

    with pytest.raises(
        ServiceDiffers, match=r"with job=None \(here 'a'\), metrics_port=0 \(here 9464\)\. Hint: stop it"
    ):
        had(session, metrics_port=9464, job="a")
    with pytest.raises(ServiceDiffers, match=r"with metrics_prot=None \(here 0\)"):
        had(session, metrics_prot=0)
    assert (had(session), first.stops) == (first, 0)


@pytest.mark.parametrize("end", ["an error", "Spark"])
def test_a_service_that_can_serve_nobody_is_stopped_and_makes_room(end: str) -> None:
    session = Session(1)
    dead = had(session, metrics_port=0)
    if end == "Spark":
        session.sparkContext._jsc = None
    else:
        dead.error = ValueError("in the middle")
    new = had(Session(1))

    assert (new is dead, dead.stops, new.stops) == (False, 1, 0)


def test_the_end_of_a_with_stops_the_service_for_all_who_have_it() -> None:
    session = Session(1)
    with had(session) as service:
        assert had(session) is service
    assert service.stops == 1
    assert had(session) is not service
