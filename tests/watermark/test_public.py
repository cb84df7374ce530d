from __future__ import annotations

from types import FunctionType

import lowmark.watermark


def test_every_public_name_is_exported_once_and_described() -> None:
    exported = lowmark.watermark.__all__

    assert len(exported) == len(set(exported))
    for name in exported:
        item = getattr(lowmark.watermark, name)
        assert item.__doc__ or not isinstance(item, type | FunctionType), f"{name} has no docstring"
