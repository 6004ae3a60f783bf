"""What each method does at a step: a few lines that join the mathematics to the training loop."""
