"""Files as a source: one split for each file, in event-time order if their times are known."""

from .errors import FileChanged, FileUnreadable, InvalidFileOption, NoSchema
from .listing import FileSplit
from .source import FileSource

__all__ = ["FileChanged", "FileSource", "FileSplit", "FileUnreadable", "InvalidFileOption", "NoSchema"]
