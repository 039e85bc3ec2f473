"""Watch which layer of a model is running: layers are the items of a `ModuleList`."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from attnscope.base.layer_kinds import LAYER_KINDS, LayerPaths, MixingLayer
from attnscope.model.module_hooks import in_this_thread, listening

ListItem = tuple[str, int]  # the name of a list of modules, and an index in it


class RunningLayers:
    """The layer that is running, and the classes of the modules that have run in each."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._running: list[ListItem] = []
        self._classes: dict[ListItem, set[str]] = {}
        self.mixing: dict[ListItem, MixingLayer] = {}  # paths without softmax that were seen to run

    @property
    def item(self) -> ListItem | None:
        """The outermost item of a list that is running; None outside of lists."""
        return self._running[0] if self._running else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the modules of the model within the block."""
        items: dict[nn.Module, ListItem] = {}
        for name, module in self._model.named_modules():
            if isinstance(module, nn.ModuleList):
                items |= {item: (name, index) for index, item in enumerate(module)}
        with listening(list(self._handles(items))):
            yield

    def _handles(self, items: Mapping[nn.Module, ListItem]) -> Iterator[Any]:
        def enter(module: nn.Module, _: Any) -> None:
            if module in items:
                self._running.append(items[module])
            if self._running:
                self._classes.setdefault(self._running[0], set()).add(type(module).__name__)

        def leave(module: nn.Module, *_: Any) -> None:
            if module in items:
                self._running.pop()

        for module in self._model.modules():
            yield module.register_forward_pre_hook(in_this_thread(enter))
            if module in items:
                yield module.register_forward_hook(in_this_thread(leave))

    def kinds(self, name: str, attention: Mapping[int, LayerPaths]) -> tuple[LayerPaths, ...]:
        """Return the kinds of the layers of a list that ran; `attention` has the kinds of those that attended."""
        ran = {
            index: classes for (listed, index), classes in self._classes.items() if listed == name
        }
        return tuple(
            self._paths(ran.get(index, set()), attention.get(index, ()))
            for index in range(1 + max(ran))
        )

    def mixing_of(self, name: str) -> dict[int, MixingLayer]:
        """Return the paths without softmax of the layers of a list, by their number."""
        return {
            index: layer
            for (of_list, index), layer in sorted(self.mixing.items())
            if of_list == name
        }

    def _paths(self, classes: set[str], attention: LayerPaths) -> LayerPaths:
        """Return the kinds of a layer: how it attends, then what else lets its tokens read each other."""
        matched = [
            layer_kind
            for layer_kind in LAYER_KINDS.values()
            if layer_kind.classes
            and any(re.fullmatch(layer_kind.classes, name) for name in classes)
        ]
        mixing = tuple(layer_kind.name for layer_kind in matched if layer_kind.mixes)
        if attention or mixing:
            return *attention, *mixing
        return tuple(layer_kind.name for layer_kind in matched) or ("other",)
