"""What happened, out of the journal: timelines in a terminal, pictures and pages."""
