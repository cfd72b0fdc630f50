"""What users write and read (`v1alpha1`, `status`), and what operator and runtime exchange
(`contract`).
"""
