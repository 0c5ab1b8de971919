"""What a guest is told at birth, and what it is asked later."""
