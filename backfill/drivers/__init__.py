"""TOUCHES: one package per outside technology, imported only when the configuration names it."""
