"""The command line: one file per command, imported when the command is called. Nothing imports this folder."""
