"""A session for the trainers of other frameworks: one module each, which alone imports it."""
