"""Entry point of the templates, which the launcher runs."""

from gristmill.pipelines.commands.template import main

if __name__ == "__main__":
    main()
