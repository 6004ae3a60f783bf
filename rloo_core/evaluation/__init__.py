"""How good a policy is: numbers in, numbers and pictures out."""
