"""What is shown: tables on a terminal, and the colours of pictures and pages."""
