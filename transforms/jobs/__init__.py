"""What a conversion is to do: options, inputs and plan, kept on storage."""
