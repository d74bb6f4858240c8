"""`python -m gristmill`: the command line, where no script is on the path."""

if __name__ == "__main__":  # Worker processes import this module, and need nothing.
    from gristmill.pipelines.commands.main import main

    main()
