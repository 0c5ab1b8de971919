"""SHOWS: the command line and the reports."""
