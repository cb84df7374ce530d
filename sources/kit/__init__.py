"""Parts that most connectors need.

simple          a source of a few methods
discovery       the enumerator that lists splits again and again
asking_planner  a planner that goes on without splits that give no answer; with `unanswered`
patience        asks a system again until it answers
data_loss       counts or raises losses
streams         names of streams, or a pattern
options         arguments of a source, checked; `spark_options` those of a `readStream`
"""
