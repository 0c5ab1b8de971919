"""Our hooks in Slurm: built, installed beside those of the site, taken out again."""
