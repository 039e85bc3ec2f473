"""The transformer and its attention, in torch."""

from attnscope.base.system.allocation import configure_malloc

configure_malloc()
