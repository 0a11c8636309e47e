"""`python -m retriever_server`."""

import sys

from retriever_server.cli import main

sys.exit(main())
