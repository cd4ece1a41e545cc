"""Public datasets as arrays: those that come with scikit-learn, and those read from files."""
