"""`python -m segmentstore.cli` is the `segmentstore` command."""

from segmentstore.cli.main import main

if __name__ == "__main__":
    main()
