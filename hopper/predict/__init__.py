"""``hopper predict``: a trained model's predictions for nodes or edges of a graph."""
