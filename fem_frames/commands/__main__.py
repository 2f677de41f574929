"""`python -m fem_frames.commands` runs the command where the console script is not installed."""

from fem_frames.commands import main

main()
