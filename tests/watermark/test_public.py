from __future__ import annotations

from types import FunctionType

import lowmark.watermark


def test_every_public_name_is_exported_once_and_described() -> None:
    exported = lowmark.watermark.__all__

    assert len(exported) == len(set(exported))
    for name in exported:
        item = getattr(lowmark.watermark, name)
        assert item.__doc__ or not isinstance(item, type | FunctionType), f"{name} has no docstring"


def test_the_names_that_others_build_on_are_there_and_the_machinery_is_not() -> None:
    exported = set(lowmark.watermark.__all__)
    promised = {"WatermarkStrategy", "NotifyNewLowWatermark", "LowWatermarkListener", "StreamStatus", "LowmarkError"}

    assert promised <= exported
    assert not exported & {"Coalescer", "SplitWatermarks", "SourceRounds", "BatchReported", "MOST_TASKS"}
    assert not exported & {"LowWatermarkCoordinator", "TaskRegistered", "CapAnnounced", "Tick"}, (
        "messages of `lowmark serve`"
    )
