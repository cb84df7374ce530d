"""One task: from the events of its splits to its low watermark."""
