"""Sources of queries, keys, values and masks: attnscope's own stack, and transformers."""
