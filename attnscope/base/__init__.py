"""What every other folder builds on: errors, files, the system, ModelConfig."""
