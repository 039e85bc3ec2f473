"""Check a model's attention against laws and references."""
