"""``python -m normscope``."""

from normscope.cli.main import main

if __name__ == "__main__":
    main()
