"""A simulated cluster behind the same ports, on a simulated clock."""
