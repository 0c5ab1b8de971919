"""One decision rule per file; the fields of its dataclass are its keys in the policy file."""
