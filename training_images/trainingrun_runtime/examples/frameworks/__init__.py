"""Examples with other frameworks; the image needs their extras, see docs/frameworks.md."""
