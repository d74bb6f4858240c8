"""The description of a conversion: options, inputs and plan, kept on storage."""
