"""``python -m dovetail``: the command."""

from dovetail.cli.main import main

if __name__ == "__main__":
    main()
