"""The transformer and its attention, in torch."""

from attnscope.base.system.library_memory import configure_malloc

configure_malloc()
