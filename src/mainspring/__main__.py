"""`python -m mainspring`: the command, where its script is not on the path."""

from mainspring.cli import main

main()
