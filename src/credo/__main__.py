"""``python -m credo`` is the command line."""

from credo.cli import main

main()
