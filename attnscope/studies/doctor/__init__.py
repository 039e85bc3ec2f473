"""`attnscope doctor`: whether the attention of a model, a backend, a collator or a batch is right."""
