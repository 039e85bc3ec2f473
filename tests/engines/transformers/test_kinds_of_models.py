"""Models that read more than a text, run layers again, attend in chunks, or hold a text model: see the census."""

import pytest
import transformers as hf

import attnscope
from tests.families.census import build, examine, text_class
from tests.helpers.hybrids import save_hybrid

TEXT = "the bank by the river was old"
QUICK = ["hrm_text", "lilt", "longformer", "longt5", "llama4", "xmod"]
OTHERS = [
    "altclip", "bridgetower", "bros", "clvp", "dia", "dory", "encoder-decoder", "led", "pe_audio", "pp_chart2table",
    "qwen2_5_omni_thinker", "seamless_m4t", "trocr", "udop", "vision-text-dual-encoder",
]  # fmt: skip


@pytest.mark.parametrize("model_type", [*QUICK, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)])
def test_every_number_is_that_of_eager_transformers(model_type: str) -> None:
    finding = examine(model_type)
    assert (finding.verdict, finding.reason) == ("right", "")
    assert {"weights", "padded"} <= set(finding.differences)
    assert max(finding.differences.values()) < 1e-4


@pytest.mark.parametrize(
    ("model_type", "note"),
    [
        ("xmod", "lang_ids: zeros, since the model needs it and a text has none"),
        ("llama4", "the text model 'language_model' is shown alone: transformers cannot run it on tokens alone"),
        ("hrm_text", "modules attend 32 times in a pass: layers are numbered as they run"),
        ("lilt", "its weights are applied to two sets of values, of which the last are shown"),
    ],
)
def test_a_note_says_what_is_shown(tmp_path, model_type: str, note: str) -> None:
    save_hybrid(tmp_path, build(model_type, text_class(hf.CONFIG_MAPPING[model_type])))
    notes = attnscope.inspect(TEXT, model=str(tmp_path)).data.provenance.notes
    assert any(note in line for line in notes), notes
