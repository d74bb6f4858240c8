"""Entry point of the template `verify`."""

from gristmill.pipelines.commands.template import main

if __name__ == "__main__":
    main("verify")
