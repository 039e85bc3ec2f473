"""Run any architecture through the attention interface of `transformers`."""
