"""A real OpenStack on this machine, in a network of its own: for tests and to play with."""
