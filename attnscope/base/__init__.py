"""The foundation of every other folder: errors, files, the system, ModelConfig."""
