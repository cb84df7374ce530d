"""The services of this process: a notebook's cell that runs again gets its earlier service."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lowmark.integration.errors import ServiceDiffers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Running"]


class Running:
    """Running services, each with the arguments that made it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._services: list[tuple[Any, SparkSession, Mapping[str, Any]]] = []  # Any: the service, which knows this

    def find(self, spark: object, arguments: Mapping[str, Any]) -> Any:
        """Return the service of a session if its arguments are the same; None if the session has no service.

        Raises:
            ServiceDiffers: the session's service was made with other arguments.
        """
        mine = getattr(spark, "_jsparkSession", None)
        with self._lock:
            for service, session, made_with in self._services:
                # A new session may have the number of a session whose context was stopped.
                if mine is None or (session is not spark and not _same(session._jsparkSession, mine)):
                    continue
                differing = tuple(
                    f"{name}={made_with.get(name)!r} (here {value!r})"
                    for name, value in sorted(arguments.items())
                    if made_with.get(name) != value
                )
                if differing:
                    raise ServiceDiffers(differing)
                return service
        return None

    def stop_those_of_no_use(self) -> None:
        """Stop services that hold ports in vain: their Spark was stopped, or an error has ended them."""
        with self._lock:
            left_behind = [
                service
                for service, session, _ in self._services
                if session.sparkContext._jsc is None or service.failed is not None
            ]
        for service in left_behind:
            service.stop()

    def add(self, service: object, spark: SparkSession, arguments: Mapping[str, Any]) -> None:
        """Add a service, until it stops."""
        with self._lock:
            self._services.append((service, spark, dict(arguments)))

    def remove(self, service: object) -> None:
        """Forget a service that stops; does nothing if the service is unknown."""
        with self._lock:
            self._services = [each for each in self._services if each[0] is not service]


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one.equals(other))
    except Exception:  # noqa: BLE001  # a stopped session's JVM may be gone, and py4j has many errors for this
        return False
