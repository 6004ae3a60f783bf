"""Runs the stages of `rloo_core`: Hydra composes, Prefect orchestrates, MLflow remembers."""
