"""DECIDES: the pure core; it knows no clock, no I/O and no library but the standard one."""
