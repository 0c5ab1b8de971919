"""What is known and what may be done, as values: nothing here decides."""
