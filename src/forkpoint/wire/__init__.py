"""Documents that client and server share: values (`documents`) and errors (`problems`) as JSON, and read back."""
