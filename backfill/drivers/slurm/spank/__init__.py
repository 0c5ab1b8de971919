"""The options of sbatch, salloc and srun by which a job asks for machines of its own."""
