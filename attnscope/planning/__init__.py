"""What a run will compute, and whether it fits into memory. Never imports torch."""
