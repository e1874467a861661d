"""`python -m flowfabric.cli` is `flowfabric`."""

from flowfabric.cli import main

if __name__ == "__main__":
    main()
