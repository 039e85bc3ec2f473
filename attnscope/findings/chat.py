"""What is known of a text that was rendered from messages."""

from typing import Annotated

import msgspec

from attnscope.findings.arrays import along


class ChatText(msgspec.Struct, frozen=True):
    """How messages became a text.

    Attributes:
        template: Name of the chat template, and the file that has it.
        messages: Role of each message.
        assistant: Positions of the tokens in the template's `generation` blocks, those that a model is trained on; null
            if the template has no such blocks.
    """

    template: str
    messages: list[str]
    assistant: Annotated[list[int], along("assistant token", positions="token", ascending=True)] | None = None
