"""Models, data, batches and gradients. No noise is added here."""
