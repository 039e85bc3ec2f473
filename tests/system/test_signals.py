"""Processes that are started while signals are blocked."""

import signal
import subprocess
import sys

import pytest

from attnscope.base.system.signals import ended_by_sigterm

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no blocked signals")


def test_a_process_that_is_started_ends_at_sigterm_although_this_thread_blocks_it():
    command = ["sh", "-c", "kill -TERM $$; exit 7"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        assert subprocess.run(command).returncode == 7
        with ended_by_sigterm():
            assert subprocess.run(command).returncode == -signal.SIGTERM
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
