"""`python -m bilevelbench`."""

from bilevelbench.cli import main

if __name__ == "__main__":
    main()
