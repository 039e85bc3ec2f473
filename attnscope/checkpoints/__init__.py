"""Checkpoint folders, safetensors headers, TOML stacks, bundled samples. Never imports torch."""
