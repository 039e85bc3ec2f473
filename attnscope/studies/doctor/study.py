"""`attnscope doctor`: whether the attention of a model, a backend, a collator or a batch is right."""

from typing import Any

from attnscope.studies.study import Call, FindingsKind, Request, Study, StudyCommand


def _answer(request: Request) -> Any:
    from attnscope.engines.torch_setup import import_torch

    import_torch()
    from attnscope.studies.doctor.batch_file import batch_of
    from attnscope.studies.doctor.checkpoint import examine_checkpoint

    more: dict[str, Any] = {}
    if (path := request.values.get("batch")) is not None:
        assert request.read_json is not None
        where, value = request.read_json(path)
        batch, told = batch_of(value, where)
        more = {"batch": batch, **told}
    return examine_checkpoint(request.run, request.values, request.session.progress, **more)


STUDY = Study(
    (
        FindingsKind(
            "doctor",
            "doctor:DoctorReport",
            "doctor.screen:present_doctor",
            (".json", ".txt", ".xml"),
        ),
    ),
    StudyCommand(
        """Examine whether the attention of a model is right.

        Runs the model with transformers under each implementation of attention, and examines packed documents, padding,
        causality, windows, caches, prefill in chunks, 4-D masks, sinks, soft-cap and rotary positions.
        Compares every backend with eager attention in float32; a difference that rounding explains is accepted.
        Exits with 1 if anything is wrong.
        A collator is examined from Python: attnscope.doctor(model, collator=collator).

        JSON, JUnit and Python name a check with underscores: packed documents is packed_documents. Two have other
        names there: 4-D mask is mask_4d, and padding is the end token is padding_is_eos.
        """,
        """
        attnscope doctor --model ./my-llama
        attnscope doctor --model ./my-llama --attn eager,sdpa,flex_attention
        attnscope doctor --model ./my-llama --dtype bfloat16
        attnscope doctor --model ./my-llama --batch batch.json
        attnscope doctor --model ./my-llama --file texts.txt -o doctor.xml
        attnscope doctor --model ./my-llama --json | jq '.checks[] | select(.verdict == "wrong")'
        """,
        _answer,
        call=lambda _values, _sides: Call("doctor", "file"),
        failed=lambda report: not report.passed,
    ),
)
