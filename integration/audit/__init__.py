"""`lowmark audit`: what native Spark would lose of rows that are there, without Spark and without writing anything."""
