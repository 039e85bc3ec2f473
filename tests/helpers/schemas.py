"""Validate data by the published schemas, each read and checked once."""

import json
from functools import cache
from typing import Any

import jsonschema

from attnscope.findings.__main__ import schema_file


@cache
def _validator(name: str) -> Any:
    schema = json.loads(schema_file(name).read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def validate(data: Any, name: str) -> None:
    """Compare data with the schema of that name.

    Raises:
        jsonschema.ValidationError: It is not as the schema says.
    """
    _validator(name).validate(data)
