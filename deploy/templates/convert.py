"""What the launcher of the template `convert` runs."""

from gristmill.pipelines.commands.template import main

if __name__ == "__main__":
    main("convert")
