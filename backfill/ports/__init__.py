"""Every contract with the outside, and the errors that drivers may raise."""
