"""`docs/llms.txt`: the pages of the documentation for language models, from the README's list of them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_HEAD = """\
# attnscope

> See what attention does inside a transformer, on the command line: raw scores, masked scores, softmax weights and top
> contributors of any layer and head, roles of heads, ablation, patching, and checks of masks and padding. It runs real
> checkpoints on CPU or CUDA without a network, and every number is computed from the model's own queries and keys.

`attnscope help --json` prints every command and option with types and defaults; `attnscope help --skill` what an agent
has to know.

## Docs

- [SKILL.md](SKILL.md): how to drive the command line.
- [schema.json](schema.json): JSON Schema of all findings.
"""


def llms_text() -> str:
    """Return the file, whose links are relative to docs/."""
    section = (
        (ROOT / "README.md").read_text().partition("\n## Documentation\n")[2].partition("\n## ")[0]
    )
    lines = []
    for line in section.splitlines():
        link = re.match(r"- \[([^]]+)\]\(docs/([^)]+)\): (.*)", line)
        if link:
            title, page, text = link.groups()
            plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)
            lines.append(f"- [{title}]({page}): {plain}")
    return _HEAD + "\n".join(lines) + "\n"
