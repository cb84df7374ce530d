"""The page: a live picture of streams in a browser, on 127.0.0.1 and read-only."""
