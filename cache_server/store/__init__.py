"""What one server stores: its manifest, its tables of rows, and the files of the whole graph."""
