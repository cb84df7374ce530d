"""`lowmark audit`: the rows of existing data that native Spark would lose, found without Spark and without a write."""

ROWS = 1_000_000  # read by default; here, so that `lowmark --help` imports no client
