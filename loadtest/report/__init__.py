"""Results as one HTML page that needs nothing from elsewhere: plots as SVG, tables as text; and progress on the way."""
