"""What to do next with one managed node, by phase; each step only looks at the world."""
