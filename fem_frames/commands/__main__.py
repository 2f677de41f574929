"""`python -m fem_frames.commands`, for where the console command is not installed."""

from fem_frames.commands import main

main()
