"""Run texts with the transformers engine, and return its Report."""

from attnscope.config import RunConfig, TextInput
from attnscope.pipeline import inspect
from attnscope.report import STAGES, Report

TEXTS = ("the bank by the river was old", "we sat on it all day while the water ran by")
SOURCE = "water ran all day"


def run(folder, texts=TEXTS, context=None, **options) -> Report:
    asked = {"engine": "transformers", "layer": "all", "head": "all", "stages": STAGES, **options}
    return inspect(RunConfig(tuple(TextInput(t, context=context) for t in texts), str(folder), **asked))
