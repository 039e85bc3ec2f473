"""Dump the attention of many texts to a file that survives interruption."""
