"""What is asked of a running guest, and what a guest is told at birth."""
