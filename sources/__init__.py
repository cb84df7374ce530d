"""What can be read: split enumeration and reading on Spark, and the connectors.

pyspark is imported in ``spark.py`` only.
"""
