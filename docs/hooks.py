"""Hooks of the site: files beside docs/ that its pages link to become pages, without copies in the repository."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
# a file of the repository, to its page on the site
PROJECT = {
    "README.md": "project/README.md",
    "ARCHITECTURE.md": "project/ARCHITECTURE.md",
    "benchmarks/README.md": "project/benchmarks.md",
}


def on_files(files, config):
    """Add the pages of the project."""
    for source, page in PROJECT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_links_from_project(source, text)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links out of docs/ to the pages of the project."""
    for source, target in PROJECT.items():
        markdown = markdown.replace(f"](../{source}", f"]({target}")
    return markdown


def _links_from_project(source, text):
    """Rewrite links of a file in the repository for its page, one folder below docs/; others become plain text."""
    folder = Path(source).parent

    def rewritten(match):
        label, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match.group()
        path, hash_, anchor = target.partition("#")
        name = (folder / path).as_posix()
        inside = f"../{name.removeprefix('docs/')}" if name.startswith("docs/") else None
        if name in PROJECT:
            inside = PROJECT[name].removeprefix("project/")
        if inside is None or inside.endswith(".ipynb"):
            return label.removeprefix("!")
        return f"{label}({inside}{hash_}{anchor})"

    return re.sub(r"(!?\[[^]]*\])\(([^)\s]+)\)", rewritten, text)
