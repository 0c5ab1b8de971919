"""One file per command, or per few commands that do the same kind of thing."""
