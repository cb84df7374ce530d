"""What a process of ours has whatever it does: a clock, a loop, its sockets."""
