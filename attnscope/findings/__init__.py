"""Findings as plain data: what every view and export reads, and nothing else. No torch in here.

A Report has a version (`SCHEMA`), keeps every float32 to the last bit in JSON, and can be opened again without the
model. The JSON Schemas of all findings are beside the types, and tests compare the two.
"""
