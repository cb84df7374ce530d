"""A folder for the PYTHONPATH of the processes that Spark starts for our sources: Python runs `sitecustomize` in it."""
