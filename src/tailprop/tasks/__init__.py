"""What there is to learn: each task builds its model, data, loss and metrics; the training loop knows none of them."""
