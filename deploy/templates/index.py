"""Entry point of the template `index`."""

from gristmill.pipelines.commands.template import main

if __name__ == "__main__":
    main("index")
