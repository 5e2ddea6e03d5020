"""The command `python -m securemedian VERB ...`."""

import sys

from securemedian.cli import main

sys.exit(main())
