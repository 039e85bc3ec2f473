"""Attention over layers: rollout and value zeroing."""
