"""`python -m gristmill`: the command line, where no script is on the path."""

from gristmill.pipelines.commands.main import main

if __name__ == "__main__":
    main()
