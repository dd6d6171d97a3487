"""Lets `python -m archerfish` be the `archerfish` command."""

from archerfish.cli.main import main

main()
