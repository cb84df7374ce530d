"""Files as a source: one split for each file, in event-time order if their times are known."""

from .errors import FileChanged, FileUnreadable, InvalidFileOption, NoSchema
from .source import FileSource, FileSplit

__all__ = ["FileChanged", "FileSource", "FileSplit", "FileUnreadable", "InvalidFileOption", "NoSchema"]
