"""A model that is opened once: the same bytes, however often and from however many threads it is used."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from time import sleep

import numpy as np
import pytest
import torch

import attnscope
from attnscope.engines import opening
from attnscope.request.run_config import TextInput
from tests.engines.test_loader import ROOMY, tight
from tests.helpers.requests import requested

TEXTS = [
    "The bank by the river",
    "river",
    "She sat by the old bank of the river and the water ran over the stones",
]


@pytest.fixture
def opened(monkeypatch):
    """The names of what is opened, and of what is loaded."""
    found = []
    checkpoint = opening.open_checkpoint
    monkeypatch.setattr(
        opening,
        "open_checkpoint",
        lambda path, *more: found.append(path.name) or checkpoint(path, *more),
    )
    return found


def test_a_model_is_opened_and_loaded_once(opened):
    expected = [
        attnscope.inspect(text, layer=layer).to_json() for text in TEXTS for layer in (0, "all")
    ]
    del opened[:]
    with attnscope.open_model("riverbank") as model:
        found = [
            model.inspect(text, layer=layer).to_json() for text in TEXTS for layer in (0, "all")
        ]
        assert (
            model.explain(TEXTS[0], query="bank").to_json()
            == attnscope.explain(TEXTS[0], query="bank").to_json()
        )
        assert model.check().to_json() == attnscope.check().to_json()
        assert model.compare(TEXTS[0]).to_json() == attnscope.compare(TEXTS[0]).to_json()
        (loaded,) = model._session.models.values()
        parameters = [id(p) for p in loaded.module.parameters()]
        model.inspect(TEXTS[0])
        assert [id(p) for p in loaded.module.parameters()] == parameters
    assert found == expected
    # and by each of the functions that are not the model's
    assert opened.count("riverbank") == 1 + 3
    with pytest.raises(
        attnscope.AttnscopeError,
        match=r"model: the model is closed; use it inside its `with` block",
    ):
        model.inspect(TEXTS[0])


def test_a_vocabulary_that_is_made_of_the_text_is_that_of_each_text():
    with attnscope.open_model(config="causal") as model:
        for text in ("a b c", "c d", "a b c"):
            assert (
                model.inspect(text).to_json() == attnscope.inspect(text, config="causal").to_json()
            )
        assert (
            model.compare("a b", "b c d").to_json()
            == attnscope.compare("a b", "b c d", config="causal").to_json()
        )


@pytest.mark.parametrize(
    "how",
    [{}, {"engine": "transformers"}, {"config": "multi-head"}, {"dtype": "bfloat16"}],
    ids=str,
)
def test_threads_get_the_same_bytes(how):
    rng = random.Random(5)
    masks, layers = ("own", "causal"), ("auto",) if "config" in how else (0, "all", -1)
    calls = [
        (rng.choice(TEXTS[:2]), {"layer": rng.choice(layers), "mask": rng.choice(masks)})
        for _ in range(8)
    ]
    with attnscope.open_model(**how) as model:
        expected = [model.inspect(text, **given).to_json() for text, given in calls]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with attnscope.open_model(**how) as model, ThreadPoolExecutor(8) as pool:
            assert (
                list(pool.map(lambda call: model.inspect(call[0], **call[1]).to_json(), calls))
                == expected
            )
    finally:
        sys.setswitchinterval(switch)


def test_a_call_that_waits_while_the_model_is_closed_gets_its_numbers():
    model, begun, waiting = attnscope.open_model(), Event(), Event()

    def progress(*_):
        begun.set()
        waiting.wait(30)

    given = {"layer": slice(0, 2)}  # needs the model before the run begins
    expected = model.inspect(TEXTS[0], **given).to_json()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(model.inspect, TEXTS[0], progress=progress, **given)
        assert begun.wait(30)
        second = pool.submit(model.inspect, TEXTS[0], **given)
        while not second.running():
            sleep(0.01)
        sleep(0.2)  # it waits for the first call's turn to end
        model.close()
        waiting.set()
        assert [one.result().to_json() for one in (first, second)] == [expected] * 2


def test_threads_that_each_open_a_model_get_the_same_bytes():
    with attnscope.open_model() as model:
        expected = {text: model.inspect(text, layer="all").to_json() for text in TEXTS}
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda text: attnscope.inspect(text, layer="all").to_json(), TEXTS * 2)
        )
    assert found == [*expected.values()] * 2


def test_threads_get_the_same_bytes_of_weights_that_are_read_in_every_pass(minilm):
    most = tight(
        requested(
            (TextInput(TEXTS[2]),), model=str(minilm), layer="all", head="0", max_memory=ROOMY
        )
    ).max_memory
    expected = attnscope.inspect(TEXTS[2], model=minilm, layer="all", head=0).to_json()
    said = pytest.warns(UserWarning, match="weights are read again in every pass")
    with (
        attnscope.open_model(minilm, max_memory=most) as model,
        ThreadPoolExecutor(4) as pool,
        said,
    ):
        found = set(
            pool.map(lambda _: model.inspect(TEXTS[2], layer="all", head=0).to_json(), range(4))
        )
    assert found == {expected}


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_keeps_its_number_of_threads_also_after_an_error(threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        attnscope.inspect(TEXTS[0])
        assert torch.get_num_threads() == threads
        attnscope.check()
        assert torch.get_num_threads() == threads
        with pytest.raises(attnscope.AttnscopeError):
            attnscope.inspect(TEXTS[0], layer=0, device="cuda:99")
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.device("meta"),
        lambda: default_dtype(torch.float64),
        lambda: default_dtype(torch.bfloat16),
    ],
    ids=["autocast", "device", "float64", "bfloat16"],
)
def test_numbers_do_not_depend_on_what_the_caller_set_torch_to(setting):
    """Nor on when: a model that is opened before, and one that is opened meanwhile."""
    given = {"layer": "all", "head": "all"}
    expected = attnscope.inspect(TEXTS[0], **given).to_json()
    random = attnscope.inspect(TEXTS[0], config="multi-head", **given).to_json()
    with attnscope.open_model() as model, setting():
        before = (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_autocast_enabled("cpu"),
        )
        assert model.inspect(TEXTS[0], **given).to_json() == expected
        assert attnscope.inspect(TEXTS[0], **given).to_json() == expected
        assert attnscope.inspect(TEXTS[0], config="multi-head", **given).to_json() == random
        with pytest.raises(attnscope.AttnscopeError):
            attnscope.inspect(TEXTS[0], layer=0, device="cuda:99")
        assert (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_autocast_enabled("cpu"),
        ) == before


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_nothing_of_the_caller_is_frozen_out_of_the_garbage_collection():
    script = (
        "import gc, sys, attnscope\n"
        "assert gc.get_freeze_count() == 0 and 'torch' not in sys.modules\n"
        "attnscope.inspect('river')\n"
        "assert gc.get_freeze_count() == 0 and gc.isenabled() and 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_arrays_outlive_the_model():
    with attnscope.open_model() as model:
        reports = [model.inspect(text, layer="all", head="all") for text in TEXTS]
    for text, report in zip(TEXTS, reports, strict=True):
        np.testing.assert_array_equal(
            report.weights, attnscope.inspect(text, layer="all", head="all").weights
        )
