"""One coordinator for several applications: the server behind `lowmark serve`, and its clients."""
