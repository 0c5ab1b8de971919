"""Reports from the journal: timelines in a terminal, pictures and pages."""
