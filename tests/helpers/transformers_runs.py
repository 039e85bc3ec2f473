"""Run texts with the transformers engine, and return its Report."""

from attnscope.findings.heads import STAGES
from attnscope.findings.run import Report
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.helpers.requests import requested

TEXTS = ("the bank by the river was old", "we sat on it all day while the water ran by")
SOURCE = "water ran all day"


def run(folder, texts=TEXTS, context=None, **options) -> Report:
    asked = {"engine": "transformers", "layer": "all", "head": "all", "stages": STAGES, **options}
    return inspect(
        requested(tuple(TextInput(t, context=context) for t in texts), str(folder), **asked)
    )
