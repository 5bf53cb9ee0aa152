"""A run as a file, and what is made of it: tables, plots, pages, exports and differences."""
