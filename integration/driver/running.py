"""The running services of this process, one for each session."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Running"]


class Running:
    """Running services, each with its session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._services: list[tuple[Any, SparkSession]] = []  # Any: the service, which knows this

    def find(self, spark: object) -> Any:
        """Return the service of a session; None where none runs.

        A service whose Spark was stopped, or that an error has ended, is stopped first, because it holds its ports.
        """
        with self._lock:
            known = list(self._services)
        for service, session in known:
            if session.sparkContext._jsc is None or service.failed is not None:
                service.stop()
        mine = getattr(spark, "_jsparkSession", None)
        with self._lock:
            # Sessions of a stopped context and of a new one may have one number; `_same` tells them apart.
            found = (
                service for service, session in self._services
                if mine is not None and (session is spark or _same(session._jsparkSession, mine))
            )  # fmt: skip
            return next(found, None)

    def add(self, service: object, spark: SparkSession) -> None:
        """Know a service, from now until it stops."""
        with self._lock:
            self._services.append((service, spark))

    def remove(self, service: object) -> None:
        """Forget a service that stops; it need not be known."""
        with self._lock:
            self._services = [each for each in self._services if each[0] is not service]


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one.equals(other))
    except Exception:  # noqa: BLE001  # the JVM of a session that was stopped may be gone, as py4j says in many ways
        return False
