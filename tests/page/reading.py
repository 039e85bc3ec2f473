"""Read the data of a page without its script: an independent reader in Python."""

import base64
import json
import re
import zlib

import numpy as np


class PageData:
    """The header and the arrays of a page."""

    def __init__(self, page):
        self.html = page
        block = self.unpacked("data")
        size = int.from_bytes(block[:4], "little")
        self.header = json.loads(block[4 : 4 + size])
        self._arrays = block[4 + size :]

    def unpacked(self, name):
        """What the page's loader unpacks: `style`, `script` or `data`."""
        block = f'<script type="application/octet-stream" id="{name}">(.*?)</script>'
        return zlib.decompress(base64.b64decode(re.search(block, self.html, re.DOTALL)[1]))

    @property
    def nodes(self):
        return self.header["nodes"]

    def of_kind(self, kind):
        """Nodes that a component draws; others are elements, which are lists."""
        return [node for node in self.nodes if isinstance(node, dict) and node["k"] == kind]

    def elements(self, tag):
        """Every element of this tag, in the order of the page; what a component draws is not looked into."""
        inner = [node for node in self.nodes if isinstance(node, list)]
        while inner:
            element = inner.pop(0)
            if element[0] == tag:
                yield element
            inner = [child for child in element[2:] if isinstance(child, list)] + inner

    def raw(self, reference):
        entry = self.header["arrays"][reference["@"]]
        dtype = np.dtype("<" + entry["t"])
        counts = dict(self.header["counts"])
        start = sum(width * numbers for width, numbers in counts.items() if width < dtype.itemsize)
        numbers = counts[dtype.itemsize]
        planes = np.frombuffer(self._arrays, np.uint8, numbers * dtype.itemsize, start)
        of_array = slice(entry["o"], entry["o"] + int(np.prod(entry["s"])))
        found = np.ascontiguousarray(planes.reshape(dtype.itemsize, numbers)[:, of_array].T)
        return found.view(dtype).reshape(entry["s"])

    def stage(self, unit, name):
        """A stage of a head of a walk, up to the few roundings that its corrections hold: they are left out."""
        reference = unit["stages"][name]
        if "product" in reference:
            left, right = map(self.raw, reference["product"])
            return left.astype(np.float64) @ right.T
        if "of" not in reference:
            return self.raw(reference)
        before = self.stage(unit, reference["of"]) * reference.get("scale", 1.0)
        if reference["how"] == "weights":
            sizes = np.exp(before - before.max(-1, keepdims=True))
            return sizes / sizes.sum(-1, keepdims=True)
        if reference.get("allowed") is None:
            return before
        bits = np.unpackbits(self.raw(reference["allowed"]).reshape(-1))[: before.size]
        return np.where(bits.reshape(before.shape) == 1, before, -np.inf)

    def places(self, group):
        """The sources of rows, (ranks, heads, rows), on their axis; -1 for none."""
        return np.array(group["rows"]) - self.raw(group["back"])

    def listed(self, scene, group):
        """The weights of these sources: those of matrices are not repeated."""
        reference = group["measures"]["weight"]
        if reference is not None:
            return self.numbers(reference)
        places = self.places(group)
        units = {tuple(unit["at"]): unit for unit in scene["units"]}
        weights = np.full(places.shape, np.nan)
        for n, at in enumerate(group["units"]):
            matrix = self.stage(units[tuple(at)], "weights")
            found = matrix[np.array(group["rows"]), places[:, n]]
            weights[:, n] = np.where(places[:, n] < 0, np.nan, found)
        return weights

    def numbers(self, reference):
        """An array, or what was rounded to decimals."""
        raw = self.raw(reference)
        if "decimals" not in reference:
            return raw
        if reference.get("falls"):
            raw = np.concatenate(
                [raw[:1].astype(np.int64), raw[:1].astype(np.int64) - np.cumsum(raw[1:], axis=0)]
            )
        return np.where(raw == reference["missing"], np.nan, raw / 10.0 ** reference["decimals"])


def text_in(element):
    """The text of an element."""
    return element if isinstance(element, str) else "".join(map(text_in, element[2:]))


def read_page(path):
    return PageData(path.read_text(encoding="utf-8"))
