"""The command line: one file for each command, and the words that they share."""
