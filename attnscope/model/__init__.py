"""The transformer and its attention, in torch."""

from attnscope.base.system.malloc import configure_malloc

configure_malloc()
