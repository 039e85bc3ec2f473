"""`python -m attnscope`: the same as `attnscope`."""

import sys

from attnscope.cli import main

sys.exit(main())
