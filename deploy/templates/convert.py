"""Entry point of the template `convert`."""

from gristmill.pipelines.commands.template import main

if __name__ == "__main__":
    main("convert")
