"""The callback in real training runs of transformers, and as Lightning calls it: its numbers; nothing changes."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from transformers import Trainer, TrainingArguments

import attnscope
from attnscope.base.errors import UsageError
from attnscope.callbacks import AttentionStatistics
from tests.helpers.row_statistics import entropy

ROOT = Path(__file__).parents[2]
TEXT = "The bank by the river was closed"


class Texts(torch.utils.data.Dataset):
    """A few random sequences."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, n: int) -> dict[str, Any]:
        ids = torch.randint(0, 60, (9,), generator=torch.Generator().manual_seed(n))
        return {"input_ids": ids, "labels": ids}


@pytest.fixture
def tokenizer() -> Any:
    return hf.PreTrainedTokenizerFast(
        tokenizer_file=str(ROOT / "sample_weights" / "riverbank" / "tokenizer.json")
    )


def make_model() -> Any:
    torch.manual_seed(0)
    config = hf.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=10_000, n_positions=64)
    return hf.GPT2LMHeadModel(config)  # with dropout, which takes random numbers at every step


def train(place: Any, tokenizer: Any, callbacks: list[Any], attach: Any = None) -> Any:
    torch.manual_seed(1)
    arguments = TrainingArguments(
        str(place), max_steps=6, per_device_train_batch_size=4, logging_steps=3, report_to=[], use_cpu=True, seed=5,
        learning_rate=1e-2, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        make_model(),
        arguments,
        train_dataset=Texts(),
        callbacks=callbacks,
        processing_class=tokenizer,
        data_collator=hf.default_data_collator,
    )
    if attach is not None:
        attach.attach(trainer)
    trainer.train()
    return trainer


def test_training_is_the_same_to_the_last_bit(tmp_path: Any, tokenizer: Any) -> None:
    callback = AttentionStatistics(TEXT, every=2)
    runs = [train(tmp_path, tokenizer, callbacks) for callbacks in ([], [callback])]
    plain, watched = (run.model.state_dict() for run in runs)
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    moments = [run.optimizer.state_dict()["state"] for run in runs]
    for number, state in moments[0].items():
        assert all(
            torch.equal(state[name], moments[1][number][name]) for name in ("exp_avg", "exp_avg_sq")
        )
    assert [step for step, _ in callback.history] == [2, 4, 6]


def test_a_measurement_leaves_no_trace_in_the_model(tokenizer: Any) -> None:
    model = make_model().train()
    model.transformer.h[0].eval()  # not even a mode that only one module is in
    model(**{name: one[None] for name, one in Texts()[0].items()}).loss.backward()
    weights = {name: one.clone() for name, one in model.state_dict().items()}
    grads = {name: one.grad.clone() for name, one in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    implementation, hooks = (
        model.config._attn_implementation,
        [len(m._forward_hooks) for m in model.modules()],
    )
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()
    AttentionStatistics(TEXT, tokenizer=tokenizer).measure(model)
    assert all(torch.equal(one, weights[name]) for name, one in model.state_dict().items())
    assert all(torch.equal(one.grad, grads[name]) for name, one in model.named_parameters())
    assert [module.training for module in model.modules()] == modes
    assert model.config._attn_implementation == implementation
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.get_num_threads() == states[2]
    # autograd still works
    model(**{name: one[None] for name, one in Texts()[1].items()}).loss.backward()


def test_the_numbers_are_those_of_eager_attention(tokenizer: Any) -> None:
    model = make_model().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight *= 8
    scores: list[Any] = []
    softmax = torch.nn.functional.softmax

    def listen(given: Any, *more: Any, **named: Any) -> Any:
        scores.append(given[0].double().numpy())
        return softmax(given, *more, **named)

    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    torch.nn.functional.softmax = listen
    try:
        with torch.inference_mode():
            weights = model(ids, output_attentions=True).attentions
    finally:
        torch.nn.functional.softmax = softmax
    numbers = AttentionStatistics(TEXT, tokenizer=tokenizer, prefix="a").measure(model)
    assert len(numbers) == 3 * 2 * 2
    for layer in range(2):
        w = weights[layer][0].double().numpy()
        bits = entropy(w).mean(-1)
        for head in range(2):
            assert numbers[f"a/entropy/L{layer}H{head}"] == pytest.approx(bits[head], abs=1e-5)
            assert numbers[f"a/first/L{layer}H{head}"] == pytest.approx(
                w[head, :, 0].mean(), abs=1e-6
            )
            assert numbers[f"a/max_score/L{layer}H{head}"] == pytest.approx(
                scores[layer][head].max(), abs=1e-4
            )
    measured = attnscope.heads(model, TEXT, measure="entropy", tokenizer=tokenizer).data.values
    assert numbers["a/entropy/L1H0"] == pytest.approx(float(measured[1, 0]), abs=1e-6)


def test_numbers_join_the_logs_of_the_trainer(tmp_path: Any, tokenizer: Any) -> None:
    name = "attention/max_score/L1H1"
    callback = AttentionStatistics(TEXT, every=3)
    history = train(tmp_path, tokenizer, [callback]).state.log_history
    logged = {log["step"]: log[name] for log in history if name in log}
    assert logged == {step: numbers[name] for step, numbers in callback.history}
    assert list(logged) == [3, 6]


def test_an_attached_callback_logs_through_the_trainer(tmp_path: Any, tokenizer: Any) -> None:
    """So that integrations, which come before other callbacks, get the numbers."""
    callback = AttentionStatistics(TEXT, every=2)
    history = train(tmp_path, tokenizer, [], callback).state.log_history
    alone = [log for log in history if "attention/first/L0H1" in log]
    assert [log["step"] for log in alone] == [2, 4, 6]
    assert all("loss" not in log for log in alone)


class Logger:
    """A logger of Lightning, as far as it is called."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))


def train_with_lightning(
    lightning: Any, callbacks: list[Any], tokenizer: Any, place: Path
) -> tuple[Any, Any, Any]:
    """Train a model in a LightningModule, with gradients accumulated over two batches; return all that changed."""

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.tokenizer = make_model(), tokenizer

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    torch.manual_seed(1)
    module = Module()
    logger = lightning.loggers.CSVLogger(str(place), flush_logs_every_n_steps=1)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=4, accumulate_grad_batches=2, logger=logger, callbacks=callbacks,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Texts(), batch_size=2, shuffle=True)
    trainer.fit(module, loader)
    return module, trainer, torch.rand(3)  # the numbers that follow training


@pytest.mark.filterwarnings("ignore")
def test_a_training_run_of_lightning_is_the_same_to_the_last_bit(
    tokenizer: Any, tmp_path: Path
) -> None:
    lightning = pytest.importorskip(
        "lightning.pytorch", reason="lightning is not installed", exc_type=ImportError
    )
    callback = AttentionStatistics(TEXT, every=2)
    assert isinstance(callback, lightning.Callback)
    plain, watched = (
        train_with_lightning(lightning, callbacks, tokenizer, tmp_path / str(len(callbacks)))
        for callbacks in ([], [callback])
    )
    weights = [run[0].state_dict() for run in (plain, watched)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    moments = [run[1].optimizers[0].state_dict()["state"] for run in (plain, watched)]
    for number, state in moments[0].items():
        assert all(
            torch.equal(state[name], moments[1][number][name]) for name in ("exp_avg", "exp_avg_sq")
        )
    assert torch.equal(plain[2], watched[2])
    assert [step for step, _ in callback.history] == [2, 4]
    logged = list(csv.DictReader((Path(watched[1].logger.log_dir) / "metrics.csv").open()))
    for row, (step, numbers) in zip(logged, callback.history, strict=True):
        assert int(row["step"]) == step
        assert float(row["attention/entropy/L1H0"]) == pytest.approx(
            numbers["attention/entropy/L1H0"]
        )
    last = callback.history[-1][1]
    assert last == AttentionStatistics(TEXT).measure(watched[0].net, tokenizer)


def test_a_stand_in_for_lightning_calls_it_once_for_each_step_of_the_optimizer(
    tokenizer: Any,
) -> None:
    module = torch.nn.Module()
    module.net, module.tokenizer = make_model(), tokenizer
    callback, logger = AttentionStatistics(TEXT, every=2), Logger()
    # with gradients accumulated over two batches, some steps come twice
    for step in (0, 1, 1, 2, 2, 3, 4):
        trainer = SimpleNamespace(global_step=step, is_global_zero=True, loggers=[logger])
        callback.on_train_batch_end(trainer, module, None, None, 0)
    callback.on_train_end(trainer, module)
    assert [step for step, _ in logger.logged] == [2, 4]
    assert logger.logged[0][1] == callback.measure(module.net, tokenizer)


def test_it_is_a_callback_of_the_libraries_that_are_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Callback:
        """Lightning's."""

    monkeypatch.setitem(
        __import__("sys").modules, "lightning.pytorch", SimpleNamespace(Callback=Callback)
    )
    callback = AttentionStatistics(TEXT)
    assert isinstance(callback, AttentionStatistics | hf.TrainerCallback)
    assert isinstance(callback, Callback)
    assert isinstance(callback, hf.TrainerCallback)


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_steps_are_whole_numbers(every: Any) -> None:
    with pytest.raises(UsageError, match="every: must be a whole number"):
        AttentionStatistics(TEXT, every=every)
