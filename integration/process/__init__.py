"""The equipment of every process of ours: a clock, a loop, its sockets."""
