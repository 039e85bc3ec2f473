"""The process `attnscope`, also as `python -m attnscope`."""

import signal
import sys

# Python prints a traceback where Ctrl-C meets an import. Until `main` takes signals over, they end the process as the
# system does it.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from attnscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
