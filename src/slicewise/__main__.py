"""`python -m slicewise`."""

from slicewise.app.cli import main

if __name__ == "__main__":
    main()
