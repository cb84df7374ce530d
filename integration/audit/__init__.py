"""`lowmark audit`: the rows of existing data that native Spark would lose, found without Spark and without a write."""
