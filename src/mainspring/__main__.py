"""`python -m mainspring` is `mainspring`."""

from mainspring.cli import main

if __name__ == "__main__":
    main()
